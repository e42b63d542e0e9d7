// Search for pages that are opened from disk, where browsers refuse workers: the worker's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const scope = this.frame.contentWindow, script = scope.document.createElement("script");
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => { script.onload = done; });
      script.src = address;
      scope.document.body.append(script);
    }

    async postMessage(data) {
      await this.ready;
      const scope = this.frame.contentWindow;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }

    terminate() { this.frame.remove(); }
  };
}
