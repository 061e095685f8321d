// Builds elements without markup in texts, and updates a tree in place so that focus and scrolling stay.

const SVG = "http://www.w3.org/2000/svg";

// Characters without a shape, such as marks of the writing direction: they would change how other texts look.
const UNSEEN = /\p{Cf}/gu;
const plain = (value) => String(value).replace(UNSEEN, "");

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : plain(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : plain(child));
  }
  return element;
}

/** Creates an HTML element. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Changes `old` so that it equals `next`. An element with `data-keep` belongs to other code. */
export function patch(old, next) {
  const keyOf = (node) => node.dataset?.key;
  if (old.nodeName !== next.nodeName || keyOf(old) !== keyOf(next)) {
    old.replaceWith(next);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  if (old.dataset?.keep !== undefined) return;
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  patchChildren(old, [...next.childNodes]);
}

/** Changes the children of an element so that they equal `next`. */
export function patchChildren(element, next) {
  next.forEach((node, index) => {
    const old = element.childNodes[index];
    if (old) patch(old, node);
    else element.append(node);
  });
  while (element.childNodes.length > next.length) element.lastChild.remove();
}
