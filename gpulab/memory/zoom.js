// A picture of memory to zoom into: a stretch of the curve is asked for (`asked`), the kernel draws it (`svg`).

const HINT = "Point at a band to read what it is. Drag over a stretch to see it larger; double-click to go back. "
  + "Keys: + and − zoom, ← and → move, 0 goes back.";
const LEAST = 4; // points in the picture

function render({ model, el }) {
  const make = (tag, attributes) => Object.assign(document.createElement(tag), attributes);
  const box = make("div", { className: "gpulab-timeline", tabIndex: 0 });
  box.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the keys
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", model.get("words"));
  const picture = make("div"), hint = make("p", { textContent: HINT });
  box.append(picture, hint);
  el.append(box);

  const ask = (first, last) => {
    const end = model.get("end");
    const wide = Math.min(end, Math.max(LEAST, Math.round(last - first)));
    const start = Math.min(end - wide, Math.max(0, Math.round(first)));
    model.set("asked", [start, start + wide]);
    model.save_changes();
  };
  const zoom = (factor, at) => { // `at` is the point that stays where it is
    const [first, last] = model.get("stretch"), middle = at ?? (first + last) / 2;
    ask(middle - (middle - first) * factor, middle + (last - middle) * factor);
  };
  const pointAt = (x) => {
    const { left, width } = picture.firstChild.getBoundingClientRect();
    const [from, to] = model.get("plot"), [first, last] = model.get("stretch");
    const share = Math.min(1, Math.max(0, ((x - left) / width - from) / (to - from)));
    return first + share * (last - first);
  };

  let began, shade;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    began = event.clientX;
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (began === undefined || Math.abs(event.clientX - began) < 5) return;
    const { left } = box.getBoundingClientRect();
    if (!shade) box.append(shade = make("div", { className: "gt-shade" }));
    shade.style.left = `${Math.min(began, event.clientX) - left}px`;
    shade.style.width = `${Math.abs(event.clientX - began)}px`;
    shade.style.height = `${picture.clientHeight}px`;
  });
  const end = (event) => {
    if (shade && event.type === "pointerup") {
      const [first, last] = [pointAt(began), pointAt(event.clientX)].sort((a, b) => a - b);
      ask(first, last);
    }
    shade?.remove();
    began = shade = undefined;
  };
  picture.addEventListener("pointerup", end);
  picture.addEventListener("pointercancel", end);
  picture.addEventListener("dblclick", () => ask(...model.get("home")));
  picture.addEventListener("wheel", (event) => { // the wheel alone scrolls the page
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, pointAt(event.clientX));
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const [first, last] = model.get("stretch"), step = (last - first) / 4;
    const act = {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => ask(...model.get("home")),
      ArrowLeft: () => ask(first - step, last - step), ArrowRight: () => ask(first + step, last + step),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });

  const show = () => { picture.innerHTML = model.get("svg"); };
  model.on("change:svg", show);
  show();
  return () => model.off("change:svg", show);
}

export default { render };
