// Gives the controls of a simulator the names that ipywidgets leaves out, so that a screen reader can say them,
// and speaks the picture's title when it has changed and come to rest. Without this a simulator works, unnamed.

const PLAY = { "fa-play": "Play", "fa-pause": "Pause", "fa-stop": "Stop and go back" };
const REST = 700; // milliseconds without a change before the new title is spoken
const WATCHED = {
  attributeFilter: ["aria-valuenow", "aria-valuetext", "class"],
  characterData: true,
  childList: true,
  subtree: true,
};

const put = (node, key, value) => node.getAttribute(key) === value || node.setAttribute(key, value);

function nameAll(box, units) {
  for (const slider of box.querySelectorAll(".widget-slider")) {
    const written = slider.querySelector(".widget-label")?.textContent.trim() ?? "";
    const label = Object.keys(units).find((key) => written === key || written.startsWith(`${key} (`)) ?? written;
    const readout = slider.querySelector(".widget-readout");
    for (const handle of slider.querySelectorAll("[role=slider]")) {
      const value = readout?.textContent.trim() || String(Number(handle.getAttribute("aria-valuenow")));
      put(handle, "aria-label", label);
      put(handle, "aria-valuetext", `${value} ${units[label] ?? ""}`.trim());
    }
    if (readout) {
      put(readout, "role", "textbox");
      put(readout, "aria-label", `${label}, as a number`);
    }
  }
  // JupyterLab would take their arrow keys, to walk from cell to cell.
  for (const menu of box.querySelectorAll("select")) put(menu, "data-lm-suppress-shortcuts", "true");
  for (const button of box.querySelectorAll(".widget-play button"))
    for (const [icon, name] of Object.entries(PLAY))
      if (button.querySelector(`.${icon}`)) put(button, "aria-label", name);
}

// noUiSlider 15 goes to the ends that the slider had when it was made, not to those it has now.
function toEnd(event) {
  const end = { Home: "min", End: "max" }[event.key];
  const slider = event.target.matches?.("[role=slider]") && event.target.closest(".noUi-target")?.noUiSlider;
  if (!end || !slider || event.target.closest("[disabled]")) return;
  event.preventDefault();
  event.stopPropagation();
  slider.set(slider.options.range[end]);
}

function attach(box, model, el) {
  const status = document.createElement("div");
  status.setAttribute("role", "status");
  el.append(status);
  const title = () => box.querySelector(".gpulab-picture svg > title")?.textContent ?? "";
  let said = title();
  let timer;
  const speak = () => {
    if (title() !== said) status.textContent = said = title();
  };
  const look = () => {
    nameAll(box, model.get("units"));
    clearTimeout(timer);
    timer = setTimeout(speak, REST);
  };
  const observer = new MutationObserver(look);
  observer.observe(box, WATCHED);
  box.addEventListener("keydown", toEnd, true);
  const enlarge = () => {
    box.style.setProperty("--jp-widgets-font-size", `${13 * model.get("scale")}px`);
    box.style.setProperty("--jp-widgets-inline-height", `${28 * model.get("scale")}px`);
  };
  model.on("change:scale", enlarge);
  enlarge();
  model.set("reduced_motion", matchMedia("(prefers-reduced-motion: reduce)").matches);
  model.save_changes();
  look();
  return () => {
    observer.disconnect();
    box.removeEventListener("keydown", toEnd, true);
    model.off("change:scale", enlarge);
    clearTimeout(timer);
  };
}

function render({ model, el }) {
  let frame;
  let stop = () => cancelAnimationFrame(frame);
  // The view is made before it is put into its box.
  const wait = () => {
    const box = el.closest(".gpulab-sim");
    if (box) stop = attach(box, model, el);
    else frame = requestAnimationFrame(wait);
  };
  wait();
  return () => stop();
}

export default { render };
