// The shapes of `autoglm-throttle load`, offered by k6, whose arrival-rate executor is an open loop as well:
// it starts a request when its time has come, whatever became of the others.
//
//     k6 run -e SHAPE=step:50,100,200:10 -e TARGET=http://127.0.0.1:8000/v1/generate examples/k6.js
//
// SHAPE is fixed:RATE:SECONDS, step:R1,R2,...:SECONDS, step:FROM:TO:STEPS:SECONDS,
// spike:BASE:PEAK:BASE_S:PEAK_S or ramp:FROM:TO:SECONDS; durations may end in ms, s or m.
// A 429 and a 503 are answers of a service that protects itself: they are expected, and no failures.
// A request for which k6 has no free user is a dropped iteration: it was never sent, so the run is worth less.

import http from 'k6/http';
import { Counter } from 'k6/metrics';

const TARGET = __ENV.TARGET || 'http://127.0.0.1:8000/v1/generate';
const BODY = __ENV.REQUEST_BODY || '{}';
const MOST_USERS = Number(__ENV.MOST_USERS || 2000);
const UNITS = { ms: 0.001, s: 1, m: 60, '': 1 };

const limited = new Counter('limited');
const shed = new Counter('shed');

function fault(text) {
  return new Error(`cannot read ${text} in a shape: fixed:RATE:SECONDS, step:R1,R2,...:SECONDS, ` +
    'step:FROM:TO:STEPS:SECONDS, spike:BASE:PEAK:BASE_S:PEAK_S, ramp:FROM:TO:SECONDS');
}

function number(text) {
  const found = text.trim() ? Number(text) : NaN;
  if (!(found >= 0 && found < Infinity)) throw fault(text);
  return found;
}

function seconds(text) {
  const [, digits, unit] = /^(.*?)(ms|s|m|)$/.exec(text);
  return number(digits) * UNITS[unit];
}

const READERS = {
  'fixed 2': ([rate, s]) => [[number(rate), number(rate), seconds(s)]],
  'step 2': ([rates, s]) => rates.split(',').map((rate) => [number(rate), number(rate), seconds(s)]),
  'step 4': ([from, to, steps, s]) => Array.from({ length: number(steps) }, (_, step) => {
    const rate = number(from) + (number(to) - number(from)) * step / (number(steps) - 1);
    return [rate, rate, seconds(s)];
  }),
  'spike 4': ([base, peak, baseS, peakS]) => [
    [number(base), number(base), seconds(baseS)],
    [number(peak), number(peak), seconds(peakS)],
    [number(base), number(base), seconds(baseS)],
  ],
  'ramp 3': ([from, to, s]) => [[number(from), number(to), seconds(s)]],
};

// Levels as [rate at the start, rate at the end, seconds].
export function levels(text) {
  const [kind, ...words] = text.trim().split(':');
  const read = READERS[`${kind} ${words.length}`];
  const found = read ? read(words) : [];
  if (!found.length || found.some(([from, to, s]) => !(from + to > 0 && s > 0))) throw fault(text);
  return found;
}

// k6 goes from one target to the next in a straight line, so a jump is a stage of no length. It knows whole
// numbers only: by the minute, so that 0.5/s is no fault.
export function stages(text) {
  return levels(text).flatMap(([from, to, s]) => [
    { target: Math.round(60 * from), duration: '0s' },
    { target: Math.round(60 * to), duration: `${Math.round(1000 * s)}ms` },
  ]);
}

const STAGES = stages(__ENV.SHAPE || 'step:50,100,200:10');

export const options = {
  scenarios: {
    shape: {
      executor: 'ramping-arrival-rate',
      startRate: STAGES[0].target,
      timeUnit: '1m',
      preAllocatedVUs: Math.min(200, MOST_USERS),
      maxVUs: MOST_USERS,
      stages: STAGES,
    },
  },
  thresholds: {
    'http_req_duration{status:200}': ['p(99)<500'],
    http_req_failed: ['rate<0.005'],
    dropped_iterations: ['count<1'],
  },
};

http.setResponseCallback(http.expectedStatuses({ min: 200, max: 399 }, 429, 503));

// One in ten is high, three are mid, six are low: as the load command sends them.
export function priority(drawn) {
  if (drawn < 0.1) return 'high';
  return drawn < 0.4 ? 'mid' : 'low';
}

export default function () {
  const asked = priority(Math.random());
  const answer = http.post(TARGET, BODY, {
    headers: { 'content-type': 'application/json', 'x-priority': asked },
    tags: { priority: asked },
  });
  if (answer.status === 429) limited.add(1, { priority: asked });
  if (answer.status === 503) shed.add(1, { priority: asked });
}
