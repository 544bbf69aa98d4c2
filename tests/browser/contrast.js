// Texts whose contrast with their background is below WCAG AA, each with its ratio.
() => {
  const parse = (text) => {
    const match = text.match(/rgba?\(([^)]+)\)/);
    const [r, g, b, a = 1] = match[1].split(/[ ,/]+/).filter(Boolean).map(Number);
    return { r, g, b, a };
  };
  const over = (top, ground) => ({
    r: top.r * top.a + ground.r * (1 - top.a),
    g: top.g * top.a + ground.g * (1 - top.a),
    b: top.b * top.a + ground.b * (1 - top.a),
    a: 1,
  });
  const behind = (node) => {
    if (!node) return { r: 255, g: 255, b: 255, a: 1 };
    const ground = parse(getComputedStyle(node).backgroundColor);
    return ground.a === 1 ? ground : over(ground, behind(node.parentElement));
  };
  const light = ({ r, g, b }) => {
    const part = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const texts = [...node.childNodes].filter((one) => one.nodeType === 3 && one.data.trim());
    if (!texts.length || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = ratio(over(ink, behind(node)), behind(node));
    if (contrast < (large ? 3 : 4.5)) bad.push(`${texts[0].data.trim()}: ${contrast.toFixed(2)}`);
  }
  return bad;
};
