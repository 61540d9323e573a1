// A line chart of a figure over the last minutes, drawn from the values that the page has read.

import { amount, duration } from "/text.js";

const SPAN_MS = 5 * 60_000;

// The most samples, which is more than the page reads in that time.
const SAMPLES_MAX = 300;

const SVG = "http://www.w3.org/2000/svg";

export class Chart {
  samples = [];

  constructor(name) {
    this.name = name;
    this.element = document.createElementNS(SVG, "svg");
    this.line = document.createElementNS(SVG, "polyline");
    this.element.setAttribute("viewBox", "0 0 100 20");
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("role", "img");
    this.element.append(this.line);
  }

  // Adds the present value. The chart is as high as `most`, or as the highest value if that is greater.
  add(value, most = 1) {
    const now = Date.now();
    this.samples.push({ now, value });
    while (this.samples[0].now < now - SPAN_MS || this.samples.length > SAMPLES_MAX) {
      this.samples.shift();
    }
    const values = this.samples.map((sample) => sample.value);
    const highest = Math.max(...values);
    const first = this.samples[0].now;
    const x = (time) => (100 * (time - first)) / Math.max(1, now - first);
    const y = (height) => 19 - (18 * height) / Math.max(most, highest);
    this.line.setAttribute("points", this.samples.map((sample) => `${x(sample.now).toFixed(2)},${y(sample.value).toFixed(2)}`).join(" "));
    this.element.setAttribute("aria-label", `${this.name} in the last ${duration((now - first) / 1000)}: ${amount(Math.min(...values))} to ${amount(highest)}`);
  }
}
