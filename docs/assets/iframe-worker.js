// SPDX-License-Identifier: Apache-2.0
// Runs the search worker in a hidden frame on pages opened from disk, where browsers refuse to start workers.

if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.contentDocument.createElement("script");
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${url} could not be loaded`));
      script.src = url;
      frame.contentDocument.body.append(script);
    });

  // the search script looks for this name
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<body></body>";
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => resolve(this.start(new URL(url, location.href).href));
      });
      document.body.append(this.frame);
    }

    start(url) {
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      scope.importScripts = async (...urls) => {
        for (const each of urls) await load(this.frame, each);
      };
      return load(this.frame, url);
    }

    postMessage(data) {
      this.ready.then(() => {
        const scope = this.frame.contentWindow;
        scope.dispatchEvent(new scope.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
