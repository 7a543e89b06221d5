() => {
  const parse = (color) => {
    const parts = color.match(/[\d.]+/g).map(Number);
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const background = (element) => {
    if (!element) return [...parse(getComputedStyle(document.documentElement).backgroundColor)];
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : [...over(own, background(element.parentElement)), 1];
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const [a, b] = [parse(getComputedStyle(element).color), background(element)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.tagName} ${walker.currentNode.data.trim()}: ${ratio}`);
  }
  return low;
}
