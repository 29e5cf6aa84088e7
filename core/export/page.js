// A cursor on each chart that has its points beside it: what was there at that moment.
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const points = JSON.parse(figure.dataset.points);
  const svg = figure.querySelector("svg");
  const line = svg.querySelector(".cursor");
  const tooltip = figure.querySelector(".tooltip");
  const box = svg.viewBox.baseVal;
  svg.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * box.width;
    let near = points[0];
    for (const point of points) if (Math.abs(point.x - x) < Math.abs(near.x - x)) near = point;
    line.setAttribute("x1", near.x);
    line.setAttribute("x2", near.x);
    line.removeAttribute("visibility");
    tooltip.textContent = near.text;
  });
}
