// Makes elements of the parts that the server sends as trees: [name, attributes, children], or a text. Only of these
// names and attributes, so that no text of a run can become anything else; the page's policy would not run it either.
const showParts = (() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const NAMES = new Set(("a p h1 h2 div section table caption thead tbody tr th td span code time svg title g rect path " +
    "text").split(" "));
  const ATTRIBUTES = new Set(("class id scope href tabindex role data-since data-at viewBox preserveAspectRatio width height x y " +
    "rx d aria-label aria-labelledby aria-current").split(" "));
  const FOCUSABLE = "a, button, [tabindex]";

  function made(node, inPicture) {
    if (typeof node === "string") return document.createTextNode(node);
    const [name, attributes, children] = node;
    if (!NAMES.has(name)) return document.createTextNode("");
    const isPicture = inPicture || name === "svg";
    const element = isPicture ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (ATTRIBUTES.has(key) && (key !== "href" || value.startsWith("/dashboard"))) element.setAttribute(key, value);
    }
    element.append(...children.map((child) => made(child, isPicture)));
    return element;
  }

  // What has the focus, and how far frames were scrolled, stays as it was: by their places in the part.
  function show(part, nodes) {
    const focused = [...part.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
    const scrolled = [...part.querySelectorAll(".scroll")].map((frame) => [frame.scrollLeft, frame.scrollTop]);
    part.replaceChildren(...nodes.map((node) => made(node, false)));
    part.querySelectorAll(".scroll").forEach((frame, n) => {
      if (scrolled[n]) [frame.scrollLeft, frame.scrollTop] = scrolled[n];
    });
    if (focused >= 0) part.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
  }

  return (parts) => {
    for (const [name, nodes] of Object.entries(parts)) {
      const part = document.getElementById(`part-${name}`);
      if (part) show(part, nodes);
    }
  };
})();
