// The search of the site runs in a Worker. A page opened from a file may start none, so there the script of the
// worker runs in a hidden frame of the page, with the names that a worker has.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((loaded, failed) => {
      const script = frame.contentDocument.createElement("script");
      Object.assign(script, { src: url, onload: loaded, onerror: () => failed(new Error(url)) });
      frame.contentDocument.head.append(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const base = new URL(url, location.href);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((ready, failed) => {
        this.frame.onload = () => {
          this.frame.onload = null;
          const inner = this.frame.contentWindow;
          // A worker's own scripts are relative to it, and are loaded one after the other.
          inner.importScripts = (...urls) =>
            urls.reduce((before, next) => before.then(() => load(this.frame, new URL(next, base))), Promise.resolve());
          inner.postMessage = (data) => this.deliver(this, data);
          load(this.frame, base).then(ready, failed);
        };
      });
      this.ready.catch((error) => this.dispatchEvent(new ErrorEvent("error", { error, message: error.message })));
      this.frame.srcdoc = "<!doctype html><title>worker</title>";
      document.body.append(this.frame);
    }

    deliver(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      target.onmessage?.(event);
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        // Assigning to onmessage of a window registers a listener, so one delivery reaches it.
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
