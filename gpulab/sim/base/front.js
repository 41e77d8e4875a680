// The front end of every simulator: controls, states, picture. Python draws; this script sends what is touched and
// shows what comes back. Of `model` it needs get, set, on, off and save_changes, which a notebook has and a page can.

const REST = 700; // milliseconds without a change before the headline is spoken
const PATIENCE = 20000; // milliseconds without an answer, after which the next question may be asked
const CALM = 1000; // milliseconds between two frames of Play where the system asks for reduced motion
const BESIDE = 280; // pixels that controls need beside the picture
const NARROW = 500; // pixels of a box whose picture is scrolled, since its letters would be too small
const UNITS = /(\d) (?=(?:[nµm]?s|min|h|[KMG]iB|[kMG]B|TFLOP\/s|×)(?:\W|$))/g; // stay on the line of their number
// JupyterLab would take arrow keys and Enter, to walk from cell to cell.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };
const POSITIONS = 1000; // of a logarithmic slider

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// One question at a time: what is touched before the answer comes is asked together, in its last state.
function makeWire(model) {
  let number = 0, waiting = {}, flying = {}, busy = false, timer;
  const send = () => {
    busy = true;
    number += 1;
    model.set("asked", { number, values: waiting });
    [flying, waiting] = [waiting, {}];
    model.save_changes();
    clearTimeout(timer);
    timer = setTimeout(free, PATIENCE);
  };
  const free = () => {
    busy = false;
    flying = {};
    if (Object.keys(waiting).length) send();
  };
  return {
    ask(values) {
      Object.assign(waiting, values);
      if (!busy) send();
    },
    answered(view) {
      if (view.answered === number) {
        clearTimeout(timer);
        free();
      }
    },
    // What was asked after an answer's question stands: a slider does not jump back under the hand.
    latest: (name, value) => waiting[name] ?? flying[name] ?? value,
    busy: () => busy,
    end: () => clearTimeout(timer),
  };
}

// -- a slider's scale: from its position to its value and back ----------------------------------------------------

function scaleOf(control, limit) {
  const low = limit?.low ?? control.low, high = limit?.high ?? control.high;
  const round = (value) => {
    const stepped = control.whole ? Math.round(value) : Math.round(value / control.step) * control.step;
    return Math.min(high, Math.max(low, Number(stepped.toPrecision(12))));
  };
  if (control.stops) {
    const stops = control.stops.filter((stop) => stop >= low && stop <= high);
    const nearest = (value) => stops.reduce((best, stop, i) =>
      Math.abs(stop - value) < Math.abs(stops[best] - value) ? i : best, 0);
    return { low, high, last: stops.length - 1, value: (at) => stops[at], at: nearest, round };
  }
  if (control.log) {
    const least = Math.max(low, control.whole ? 1 : control.step); // zero has no logarithm: it lies before the first
    const zero = low < least ? 1 : 0, ratio = Math.log(high / least) || 1;
    const value = (at) => {
      if (at < zero) return low;
      const exact = least * Math.exp((ratio * (at - zero)) / (POSITIONS - zero));
      return round(Number(exact.toPrecision(2)));
    };
    const at = (v) => (v < least ? 0 : Math.round(zero + ((POSITIONS - zero) * Math.log(v / least)) / ratio));
    return { low, high, last: POSITIONS, value, at, round, log: true };
  }
  const steps = Math.max(1, Math.round((high - low) / control.step));
  return { low, high, last: steps, value: (at) => round(low + at * control.step), at: (v) => Math.round((v - low) / control.step), round };
}

// The next value up or down, as an arrow key goes: on a logarithmic scale the next that differs, else one step.
function next(scale, value, direction) {
  let at = scale.at(value);
  for (let tries = 0; tries < POSITIONS; tries++) {
    at += direction;
    if (at < 0 || at > scale.last) return value;
    const other = scale.value(at);
    if ((other - value) * direction > 0) return other;
  }
  return value;
}

const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

function moved(scale, value, key) {
  if (key === "Home") return scale.low;
  if (key === "End") return scale.high;
  let now = value;
  for (let n = 0; n < Math.abs(KEYS[key] ?? 0); n++) now = next(scale, now, Math.sign(KEYS[key]));
  return now;
}

// -- controls: each is a node, and shows the value and the limit that Python answers with ---------------------------

const written = (value) => value.toLocaleString("en", { maximumFractionDigits: 9 });

function makeSlider(control, change) {
  let scale, now;
  const unit = control.unit ? ` ${control.unit}` : "";
  const range = make("input", { type: "range", min: 0, step: 1, "aria-label": control.label });
  const number = make("input", { type: "text", inputmode: "decimal", "aria-label": `${control.label}, as a number` });
  const why = make("small");
  const set = (value) => {
    if (value === now) return show(value);
    show(value);
    change({ [control.name]: value });
  };
  const show = (value) => {
    now = value;
    range.max = scale.last;
    range.value = scale.at(value);
    range.setAttribute("aria-valuemin", scale.low);
    range.setAttribute("aria-valuemax", scale.high);
    range.setAttribute("aria-valuenow", value);
    range.setAttribute("aria-valuetext", `${written(value)}${unit}`);
    if (document.activeElement !== number || !number.dataset.typed) number.value = written(value);
  };
  range.addEventListener("input", () => set(scale.value(Number(range.value))));
  range.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    event.stopPropagation();
    set(moved(scale, now, event.key));
  });
  const typed = () => {
    delete number.dataset.typed;
    const value = Number(number.value.replace(/[,_ ]/g, ""));
    if (number.value.trim() === "" || Number.isNaN(value)) show(now);
    else set(scale.round(value));
  };
  number.addEventListener("input", () => { number.dataset.typed = "1"; });
  number.addEventListener("change", typed);
  number.addEventListener("keydown", (event) => event.key === "Enter" && typed());
  const node = make("div", { class: "gs-control gs-slider" },
    make("span", { class: "gs-label" }, control.label), make("span", { class: "gs-number" }, number, unit), range, why);
  return {
    node, name: control.name, set,
    get value() { return now; },
    get text() { return range.getAttribute("aria-valuetext"); },
    get scale() { return scale; },
    show(value, limit) {
      scale = scaleOf(control, limit);
      range.disabled = number.disabled = scale.low === scale.high;
      why.textContent = range.disabled ? limit?.reason ?? "" : "";
      why.hidden = !why.textContent;
      show(value);
    },
  };
}

const ICONS = { play: "M1 0 11 6 1 12z", pause: "M1 0h4v12H1zM7 0h4v12H7z", stop: "M1 1h10v10H1z", step: "M0 0 8 6 0 12zM9 0h3v12H9z" };
const icon = (name) => `<svg viewBox="0 0 12 12" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;

function makeButton(name, shape, onclick) {
  const button = make("button", { type: "button", "aria-label": name, title: name, onclick });
  button.innerHTML = icon(shape);
  return button;
}

function makePlay(control, change, wire) {
  const slider = makeSlider(control, change);
  let timer;
  const call = (name, shape) => {
    play.innerHTML = icon(shape);
    for (const key of ["aria-label", "title"]) play.setAttribute(key, name);
  };
  const stop = () => {
    clearInterval(timer);
    timer = undefined;
    call("Play", "play");
  };
  const step = () => {
    if (slider.value >= slider.scale.high) return stop();
    slider.set(Math.min(slider.value + control.step, slider.scale.high));
  };
  const play = makeButton("Play", "play", () => {
    if (timer) return stop();
    if (slider.value >= slider.scale.high) slider.set(slider.scale.low);
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    timer = setInterval(() => wire.busy() || step(), calm ? CALM : 1000 / control.frames_per_second);
    call("Pause", "pause");
  });
  const back = makeButton("Stop and go back", "stop", () => {
    stop();
    slider.set(slider.scale.low);
  });
  const one = makeButton("Step", "step", step);
  slider.node.querySelector(".gs-label").after(make("span", { class: "gs-play" }, play, back, one));
  return Object.defineProperties({ end: stop }, Object.getOwnPropertyDescriptors(slider));
}

function makeChoice(control, change) {
  const options = control.options.map(([, words], i) => make("option", { value: i }, words));
  const menu = make("select", { "aria-label": control.label }, ...options);
  menu.addEventListener("change", () => change({ [control.name]: control.options[menu.value][0] }));
  const node = make("div", { class: "gs-control" }, make("span", { class: "gs-label" }, control.label), menu);
  return { node, name: control.name, show(value) { menu.value = control.options.findIndex(([one]) => one === value); } };
}

function makeFlag(control, change) {
  const box = make("input", { type: "checkbox", "aria-label": control.label });
  box.addEventListener("change", () => change({ [control.name]: box.checked }));
  const node = make("label", { class: "gs-control gs-flag" }, box, " ", control.label);
  return { node, name: control.name, show(value) { box.checked = value; } };
}

function makeScript(control, change) {
  let good = "";
  const text = make("input", { type: "text", "aria-label": control.label, spellcheck: "false" });
  const put = (value) => change({ [control.name]: value });
  text.addEventListener("change", () => put(text.value));
  const button = (words, value) => make("button", { type: "button", onclick: () => put(value()) }, words);
  const longer = (command, before = good) => [before.trim().replace(/;$/, ""), command].filter(Boolean).join("; ");
  const buttons = Object.entries(control.buttons).map(([words, command]) => button(words, () => longer(command)));
  const shorter = () => (text.value === good ? good.split(";").slice(0, -1).join(";").trim() : good);
  buttons.push(button("Undo", shorter), button("Clear", () => ""));
  const menu = make("select", { "aria-label": "Example" },
    make("option", { value: "" }, "Example: your own"),
    ...Object.entries(control.examples).map(([name, script]) => make("option", { value: script }, name)));
  menu.addEventListener("change", () => menu.value && put(menu.value));
  const node = make("div", { class: "gs-control gs-script" }, make("span", { class: "gs-label" }, control.label),
    text, ...(menu.options.length > 1 ? [menu] : []), make("span", { class: "gs-buttons" }, ...buttons));
  return {
    node, name: control.name,
    add: (command, before, values) => change({ ...values, [control.name]: longer(command, before) }),
    show(value, _, refused) {
      good = value;
      if (refused) return; // what was typed stays, to be mended
      text.value = value;
      menu.value = Object.values(control.examples).includes(value) ? value : "";
    },
  };
}

const MAKERS = { slider: makeSlider, play: makePlay, choice: makeChoice, flag: makeFlag, script: makeScript };

// -- the picture: what can be grasped in it ------------------------------------------------------------------------

// An element with data-drag="NAME" moves that control along x (or y, with data-axis), from data-from to data-to in the
// picture's own coordinates, over data-low to data-high, by data-step where the control's own step is too coarse; or
// along data-track, points of x, y and value; data-set holds values that a click sets; data-add a command. data-drop
// holds a rectangle (x, y, width, height) into which a piece is carried to be clicked there; data-after the script that
// the commands in an element follow, with values to set beside it.

// The value at the place on a track that is nearest to the pointer; between two points go equal factors.
function nearest(track, { x, y }) {
  let least = Infinity, value;
  for (let i = 1; i < track.length; i++) {
    const [left, top, from] = track[i - 1], [right, bottom, to] = track[i];
    const dx = right - left, dy = bottom - top;
    const share = Math.min(1, Math.max(0, ((x - left) * dx + (y - top) * dy) / (dx * dx + dy * dy || 1)));
    const far = Math.hypot(left + share * dx - x, top + share * dy - y);
    if (far < least) [least, value] = [far, from * (to / from) ** share];
  }
  return value;
}

function hint(words) {
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = words;
  return title;
}

const placeOf = (event, svg) =>
  new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

function makePicture(controls, wire) {
  const node = make("div", { class: "gpulab-picture" });
  let held, carried, acted = false;
  const follow = (event) => {
    const svg = node.querySelector("svg");
    if (!svg) return;
    const point = placeOf(event, svg);
    for (const { control, axis, from, to, low, high, log, step, track } of held) {
      const { scale } = control;
      const share = Math.min(1, Math.max(0, (point[axis] - from) / (to - from)));
      const value = track ? nearest(track, point) : log ? low * (high / low) ** share : low + share * (high - low);
      const fine = () => Number((Math.round(value / step) * step).toPrecision(12));
      control.set(step ? Math.min(scale.high, Math.max(scale.low, fine()))
        : scale.round(track || scale.log ? Number(value.toPrecision(2)) : value));
    }
  };
  const grips = (target) => target.dataset.drag.split(" ").map((name, i) => {
    const part = (key) => Number(target.dataset[key]?.split(" ")[i]);
    return { control: controls[name], axis: target.dataset.axis?.split(" ")[i], log: part("log"), step: part("step"),
      from: part("from"), to: part("to"), low: part("low"), high: part("high"),
      track: target.dataset.track?.split(" ").map((one) => one.split(",").map(Number)) };
  });
  const act = (target) => {
    acted = true;
    if (target.dataset.set) {
      const values = JSON.parse(target.dataset.set);
      wire.ask(values);
    } else if (target.dataset.add) {
      const [name, command] = JSON.parse(target.dataset.add);
      controls[name].add(command, ...JSON.parse(target.closest("[data-after]")?.dataset.after ?? "[]"));
    }
  };
  const carry = (event) => {
    const { piece, x, y } = carried, dx = event.clientX - x, dy = event.clientY - y;
    if (!piece.isConnected || (!carried.moved && Math.hypot(dx, dy) < 5)) return;
    if (!carried.moved) node.setPointerCapture(event.pointerId);
    carried.moved = true;
    node.dataset.held = "";
    const { a } = piece.ownerSVGElement.getScreenCTM();
    piece.setAttribute("transform", `translate(${dx / a} ${dy / a})`);
  };
  const drop = (event) => {
    const { piece } = carried, svg = node.querySelector("svg");
    const [x, y, width, height] = piece.dataset.drop.split(" ").map(Number);
    const point = placeOf(event, svg), right = point.x - x, down = point.y - y;
    if (right >= 0 && right <= width && down >= 0 && down <= height) act(piece.querySelector("[data-set],[data-add]"));
  };
  node.addEventListener("pointerdown", (event) => {
    const piece = event.button ? null : event.target.closest?.("[data-drop]");
    carried = piece ? { piece, x: event.clientX, y: event.clientY } : undefined;
    const target = event.target.closest?.("[data-drag]");
    if (!target || event.button) return;
    held = grips(target);
    node.setPointerCapture(event.pointerId);
    node.dataset.held = target.dataset.drag;
    event.preventDefault();
    target.focus?.({ preventScroll: true });
    follow(event);
  });
  node.addEventListener("pointermove", (event) => {
    if (held) follow(event);
    else if (carried && event.buttons) carry(event);
  });
  const release = (event) => {
    if (carried?.moved && event.type === "pointerup") drop(event);
    carried?.piece.removeAttribute("transform");
    held = undefined;
    delete node.dataset.held;
  };
  node.addEventListener("pointerup", release);
  node.addEventListener("pointercancel", release);
  node.addEventListener("click", (event) => {
    const target = event.target.closest?.("[data-set],[data-add]");
    if (target && !carried?.moved) act(target);
  });
  node.addEventListener("keydown", (event) => {
    const target = event.target.closest?.("[data-drag],[data-set],[data-add]");
    if (!target) return;
    if (target.dataset.drag) {
      const names = target.dataset.drag.split(" ");
      const upright = event.key === "ArrowUp" || event.key === "ArrowDown";
      const grip = controls[target.dataset.axis?.split(" ")[1] === "y" && upright ? names[1] : names[0]];
      if (!(event.key in KEYS) && event.key !== "Home" && event.key !== "End") return;
      grip.set(moved(grip.scale, grip.value, event.key));
    } else if (event.key === "Enter" || event.key === " ") act(target);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const keyOf = (target) => target?.dataset?.key ?? target?.dataset?.drag ?? target?.dataset?.set ?? target?.dataset?.add;
  const show = ({ svg, values }) => {
    const focused = node.contains(document.activeElement) ? keyOf(document.activeElement) : undefined;
    node.innerHTML = svg;
    node.classList.toggle("gs-acted", acted);
    acted = false;
    for (const target of node.querySelectorAll("[data-drag],[data-set],[data-add]")) {
      target.setAttribute("tabindex", "0");
      if (target.dataset.drag) {
        const control = controls[target.dataset.drag.split(" ")[0]];
        target.setAttribute("role", "slider");
        target.setAttribute("aria-label", `${target.dataset.label}, in the picture`); // beside the control of that name
        for (const [key, value] of [["min", control.scale.low], ["max", control.scale.high], ["now", control.value]])
          target.setAttribute(`aria-value${key}`, value);
        target.setAttribute("aria-valuetext", control.text);
        if (!target.querySelector("title")) target.append(hint(`drag: ${target.dataset.label}`));
      } else {
        target.setAttribute("role", "button");
        target.setAttribute("aria-label", target.dataset.label);
        if (target.dataset.set) {
          const chosen = Object.entries(JSON.parse(target.dataset.set)).every(([name, value]) => values[name] === value);
          target.setAttribute("aria-pressed", chosen);
        }
      }
      if (focused !== undefined && keyOf(target) === focused) target.focus({ preventScroll: true });
    }
  };
  return { node, show };
}

// -- all of it -----------------------------------------------------------------------------------------------------

function isDark(el) {
  for (let node = el; node; node = node.parentElement) {
    const [r, g, b, alpha = 1] = (getComputedStyle(node).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    if (alpha > 0.5) return 0.299 * r + 0.587 * g + 0.114 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function render({ model, el }) {
  const spec = model.get("spec");
  const wire = makeWire(model);
  const controls = {};
  for (const control of spec.controls) controls[control.name] = MAKERS[control.kind](control, wire.ask, wire);
  const picture = makePicture(controls, wire);
  const headline = make("p", { class: "gs-headline" });
  const alert = make("pre", { role: "alert", hidden: true });
  const spoken = make("div", { role: "status", class: "gs-unseen" });
  const numbers = make("div", { class: "gs-numbers" });
  const primary = spec.primary.map((name) => controls[name].node);
  const rest = spec.controls.filter(({ name }) => !spec.primary.includes(name)).map(({ name }) => controls[name].node);
  const folded = (words, ...nodes) => make("details", {}, make("summary", {}, words), ...nodes);
  const radio = `gs-${Math.random().toString(36).slice(2)}`;
  const states = spec.states.map(({ name, values }, i) => {
    const input = make("input", { type: "radio", name: radio, onchange: () => enter(i) });
    return { input, values, node: make("label", {}, input, make("span", {}, name)) };
  });
  const note = make("p", { class: "gs-note" });
  const enter = (i) => {
    states[i].input.checked = true;
    wire.ask(spec.states[i].values);
  };
  const whole = make("button", { type: "button", class: "gs-whole", title: "arrow keys: state to state; Escape: back" }, "Whole window");
  const more = folded("More settings", make("div", { class: "gs-controls" }, ...rest));
  const bar = make("div", { class: "gs-bar" },
    ...(states.length ? [make("div", { role: "radiogroup", "aria-label": "See it move", class: "gs-states" },
      ...states.map(({ node }) => node))] : []),
    ...(rest.length ? [more] : []),
    folded("The numbers", numbers, make("p", { class: "gs-leaves" }, spec.leaves_out)), whole);
  const side = make("div", { class: "gs-side" }, make("div", { class: "gs-controls" }, ...primary), bar);
  const box = make("div", { class: "gpulab-sim" }, make("div", { class: "gs-head" }, headline, note), alert, make("div", { class: "gs-body", ...OWN_KEYS }, side, picture.node), spoken);
  box.addEventListener("keydown", (event) => event.stopPropagation()); // nor are they the notebook's
  el.append(make("style", {}, model.get("look")), box);

  let said = model.get("view").headline, timer;
  const fit = () => {
    const { width } = model.get("view"), inDialog = box.closest("dialog");
    const scale = inDialog ? Math.max(1, Math.min(innerWidth / 950, innerHeight / 620)) : model.get("scale");
    const beside = !inDialog && box.clientWidth >= width * scale + BESIDE;
    box.classList.toggle("gs-beside", beside);
    box.classList.toggle("gs-narrow", !inDialog && box.clientWidth < NARROW);
    box.style.setProperty("--gs-width", `${width * scale}px`);
    box.style.setProperty("--gs-scale", scale);
  };
  const show = () => {
    const view = model.get("view");
    wire.answered(view);
    for (const { name } of spec.controls) {
      const value = wire.latest(name, view.values[name]);
      controls[name].show(value, view.limits[name], view.refused.includes(name));
      controls[name].node.hidden = view.limits[name]?.hidden ?? false;
    }
    alert.hidden = !view.error;
    alert.textContent = view.error;
    headline.textContent = view.headline.replace(UNITS, "$1\u00a0");
    numbers.textContent = view.text;
    picture.show(view);
    picture.node.querySelector("svg").setAttribute("aria-label", view.headline);
    const now = states.findIndex(({ values }) => Object.entries(values).every(([name, value]) => view.values[name] === value));
    states.forEach(({ input }, i) => { input.checked = i === now; });
    note.textContent = spec.states[now]?.note ?? "";
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (view.headline !== said) spoken.textContent = said = view.headline;
    }, REST);
  };
  const theme = () => box.classList.toggle("gs-dark", isDark(el));
  const watchers = [new ResizeObserver(fit), new MutationObserver(theme)];
  watchers[0].observe(box);
  watchers[1].observe(document.body, { attributes: true });
  model.on("change:view", show);
  model.on("change:scale", fit);
  show();
  fit();
  requestAnimationFrame(theme);
  const close = presenting(whole, box, el, enter, states, () => { fit(); theme(); });
  if (model.get("presented")) requestAnimationFrame(() => el.isConnected && whole.click());
  return () => {
    close();
    wire.end();
    clearTimeout(timer);
    watchers.forEach((watcher) => watcher.disconnect());
    Object.values(controls).forEach((control) => control.end?.());
    model.off("change:view", show);
    model.off("change:scale", fit);
  };
}

// The whole window for one simulator: the arrow keys go from state to state, Escape ends it.
function presenting(whole, box, el, enter, states, changed) {
  const dialog = make("dialog", { class: "gs-present", "aria-label": "The simulator in the whole window", tabindex: "-1" });
  whole.addEventListener("click", () => {
    if (dialog.open) return dialog.close();
    dialog.append(box);
    document.body.append(dialog);
    dialog.showModal();
    whole.textContent = "Back to the page";
    if (states.length && !states.some(({ input }) => input.checked)) enter(0);
    dialog.focus();
    changed();
  });
  dialog.addEventListener("close", () => {
    whole.textContent = "Whole window";
    el.append(box);
    dialog.remove();
    changed();
  });
  dialog.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    if (!direction || !states.length || event.target.closest("input, select, [data-drag]")) return;
    event.preventDefault();
    event.stopPropagation();
    const now = states.findIndex(({ input }) => input.checked);
    enter(now < 0 ? 0 : Math.min(states.length - 1, Math.max(0, now + direction)));
  }, true);
  return () => dialog.remove();
}

export default { render };
