"""The style sheet. Colours have a contrast of 4.5 for text, and 3 for curves and areas, in both schemes.

Blue marks served requests and warm colours mark rejections, so that the page does not depend on telling red
from green. Curves differ in their dashes, too.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fcfcfb; --sheet: #ffffff; --ink: #1c2128; --soft: #57606a; --rule: #d9dde3; --grid: #e7eaee;
  --good: #17693a; --bad: #b3202c; --caution: #8a5300;
  --ok: #2f74c0; --degraded: #0f8a8a; --limited: #b87a00; --shed: #8150c4; --failed: #c9283e;
  --dropped: #4d5561; --offered: #1c2128;
  --one: #17457f; --two: #b3540b; --three: #0f8078;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171c; --sheet: #1a1e25; --ink: #e7eaee; --soft: #a3acb8; --rule: #343b46; --grid: #2a303a;
    --good: #63d391; --bad: #ff8589; --caution: #e9b04a;
    --ok: #5c9fea; --degraded: #3dbdb0; --limited: #dba43a; --shed: #b08df0; --failed: #ff6f79;
    --dropped: #98a1ad; --offered: #e7eaee;
    --one: #84b7f5; --two: #f0a35c; --three: #4cc9bd;
  }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: clamp(16px, 4vw, 48px) }
h1, h2, h3, p, dl, dd, figure, ul { margin: 0; padding: 0 }
h1 { font-size: clamp(1.3rem, 3.5vw, 1.8rem); line-height: 1.25; font-weight: 650; letter-spacing: -.01em }
h2 { font-size: 1.2rem; font-weight: 650; margin: 48px 0 16px }
h3 { font-size: 1rem; font-weight: 650 }
header p, figcaption p, .note, dt, .figures dd { color: var(--soft); font-size: .875rem }
h1, header p, .note, .outcome, .caveats, td, th, dd { overflow-wrap: anywhere }
header { margin-bottom: 24px }
.note { margin-top: 24px }
.sentence { margin-top: 16px; max-width: 75ch }

.verdict { background: var(--sheet); border: 1px solid var(--rule); border-left: 6px solid var(--mark);
  border-radius: 8px; padding: 16px 20px }
.good { --mark: var(--good) } .bad { --mark: var(--bad) } .caution { --mark: var(--caution) }
.neutral { --mark: var(--ok) }
.outcome { font-size: 1.125rem } .label { color: var(--mark); margin-right: .35em }
.caveats { margin-top: 8px; color: var(--caution) }
.verdict .scroll { margin: 12px 0 0 }
.verdict .strong td:last-child, .verdict .strong th { color: var(--bad) }

.figures { display: grid; gap: 12px; margin: 16px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)) }
.figures > div { background: var(--sheet); border: 1px solid var(--rule); border-radius: 8px;
  padding: 12px 16px }
.figures .figure { color: var(--ink); font-size: 1.5rem; line-height: 1.3; font-weight: 650;
  font-variant-numeric: tabular-nums }

figure { background: var(--sheet); border: 1px solid var(--rule); border-radius: 8px; padding: 16px 20px;
  margin-top: 16px; min-width: 0 }
.grid { display: grid; gap: 16px; margin-top: 16px } .grid figure { margin: 0 }
.grid figure { display: flex; flex-direction: column } .grid .legend { margin-bottom: auto }
.two > :last-child:nth-child(odd) { grid-column: 1 / -1 }
.two .vast, .three .vast, .three .roomy { display: none }
.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)) }
.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)) }
.plot { display: block; overflow: visible; width: calc(100% - 64px); height: 220px;
  margin: 36px 8px 30px 56px }
.three .plot { height: 150px }
.plot:has(.name) { margin-bottom: 44px }
.field { overflow: visible; width: 100%; height: 100% }
.plot text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums }
.plot .up, .plot .last, .plot .name { text-anchor: end } .plot .across { text-anchor: middle }
.grid line, .plot .grid { stroke: var(--grid); stroke-width: 1 }
.plot .band { stroke: var(--rule); stroke-width: 1; stroke-dasharray: 2 3 }
.plot .mark { fill: var(--ink) }
path { vector-effect: non-scaling-stroke; stroke-linecap: round; stroke-linejoin: round }
.line { fill: none; stroke: var(--tint); stroke-width: 2 }
.area { fill: var(--tint); stroke: var(--sheet); stroke-width: .5 } .three .area { stroke: none }
.hint { fill: transparent } .hint:hover { fill: var(--ink); fill-opacity: .12 }
.ok { --tint: var(--ok) } .degraded { --tint: var(--degraded) } .limited { --tint: var(--limited) }
.shed { --tint: var(--shed) } .failed { --tint: var(--failed) } .dropped { --tint: var(--dropped) }
.neutral { --tint: var(--ok) } .offered { --tint: var(--offered) }
.line.offered { stroke-width: 1.5 }
.of-high, .of-p99, .of-factor_ratio, .of-inflight { --tint: var(--one) }
.of-mid, .of-p95, .of-gpu_utilization_ratio, .of-waiting { --tint: var(--two); stroke-dasharray: 7 4 }
.of-low, .of-p50, .of-gpu_memory_ratio { --tint: var(--three); stroke-dasharray: 2 4 }
.of-gpu_power_w, .of-cpu_share, .of-rss_bytes { --tint: var(--one) }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 8px;
  font-size: .875rem }
.legend li { display: flex; align-items: center; gap: 6px }
.key { width: 14px; height: 14px; border-radius: 3px; background: var(--tint) }
.key.line { width: 20px; height: 0; border-radius: 0; background: none; border-top: 3px solid var(--tint) }
.key.of-mid, .key.of-p95, .key.of-gpu_utilization_ratio, .key.of-waiting { border-top-style: dashed }
.key.of-low, .key.of-p50, .key.of-gpu_memory_ratio { border-top-style: dotted }

summary { cursor: pointer; color: var(--soft); font-size: .875rem; width: fit-content }
details .scroll { max-height: 320px; margin-top: 8px }
main > .scroll { max-height: 80vh }
.scroll { overflow: auto; margin-bottom: 24px }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 650; padding: 0 0 6px; white-space: nowrap }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--grid); text-align: right; white-space: nowrap }
th:first-child { text-align: left; padding-left: 0 }
thead th { color: var(--soft); font-weight: 500; border-bottom-color: var(--rule) }
tbody th { font-weight: 400 }
.strong th, .strong td { font-weight: 650 }
main > .scroll .strong ~ tr:not(.strong) th { padding-left: 14px }
.details { display: grid; gap: 12px 24px; font-size: .875rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 260px), 1fr)) }
@media (max-width: 1000px) { .vast { display: none } }
@media (max-width: 520px) { .roomy { display: none } th, td { padding: 5px 6px } }
@media (max-width: 700px) { figure { padding: 14px 12px } }
.verdict td:last-child, .verdict th:last-child { padding-right: 0 }
@media print { main > .scroll { max-height: none } figure, .verdict, .figures > div { break-inside: avoid } }
"""
