// Drawing: the base of elements that draw the JSON of an attribute, again when it, their width or the time zone changes.

export class Drawing extends HTMLElement {
  connectedCallback() {
    this.resizing ??= new ResizeObserver(() => this.draw());
    this.resizing.observe(this);
    this.onZone = () => this.draw();
    document.addEventListener("headgate:zone", this.onZone);
  }

  disconnectedCallback() {
    this.resizing?.disconnect();
    document.removeEventListener("headgate:zone", this.onZone);
  }

  attributeChangedCallback() {
    if (this.isConnected) this.draw();
  }
}
