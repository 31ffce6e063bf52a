// Draw, and see what a network and its detector say of it. detector.onnx holds both; no request leaves the page.
import * as ort from "./ort/ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // threads need headers that a plain server does not send

const CLASSES = 10;
const TORN = 0.15; // a digit with at least this probability is named
let about; // what build.py wrote of the detector: its threshold, and how good it is

// ---------------------------------------------------------------------------------------- the network and its detector

const session = ort.InferenceSession.create("detector.onnx");

/** What the graph says of images, each 64 numbers in [0, 1]. */
export async function judge(images) {
  const graph = await session;
  const input = new ort.Tensor("float32", Float32Array.from(images.flat()), [images.length, 1, 8, 8]);
  const found = await graph.run({ [graph.inputNames[0]]: input });
  return images.map((_, i) => ({
    prediction: Number(found.prediction.data[i]),
    epistemic: Number(found.epistemic.data[i]),
    aleatoric: Number(found.aleatoric.data[i]),
    pValue: Number(found.p_value.data[i]),
    surprising: Boolean(found.surprising.data[i]),
    probabilities: Array.from(found.probabilities.data.slice(CLASSES * i, CLASSES * (i + 1)), Number),
  }));
}

// ------------------------------------------------------------------------------------------ from strokes to 8×8 pixels

// The digits of scikit-learn are bitmaps of 32×32 that were counted in blocks of 4×4. Programs of NIST had
// sheared each until the left ends of its top and bottom stood above each other, stretched it to 20×32, and thinned or
// thickened it. We do much the same with strokes. What is not known of it, such as the ink, was chosen by drawing
// digits in two handwritings (the first of tests/strokes.py) until most were known.
const SIDE = 32, WIDTH = 20, INK = 330; // pixels
const WIDER = 1.4, TALLER = 1.8; // one direction is not stretched more than so: a 1 does not get as wide as a 0
const THIN = 1.2, THICK = 4.5; // radius of the pen, in pixels
const SMALLEST = 0.05; // of the drawing area: less is a dot
const STEP = 0.008; // of the drawing area, between two points of a stroke

/** The 64 pixels that the network sees, for strokes [[x, y], ...] in [0, 1]; null without strokes. */
export function toImage(strokes) {
  const lines = straighten(strokes.filter((stroke) => stroke.length));
  if (!lines.length) return null;
  const [left, right, top, bottom] = extent(lines.flat());
  const width = Math.max(right - left, SMALLEST), height = Math.max(bottom - top, SMALLEST);
  let radius = 2, distances = [];
  for (let round = 0; round < 4; round++) { // the pen's radius and the room that it leaves depend on each other
    let across = (WIDTH - 2 * radius) / width, down = (SIDE - 2 * radius) / height;
    across = Math.min(across, WIDER * down);
    down = Math.min(down, TALLER * across);
    const place = ([x, y]) => [SIDE / 2 + across * (x - (left + right) / 2), SIDE / 2 + down * (y - (top + bottom) / 2)];
    distances = distancesTo(lines.map((line) => line.map(place)));
    radius = Math.min(Math.max(distances.slice().sort()[INK - 1], THIN), THICK);
  }
  const image = new Array(64).fill(0);
  distances.forEach((distance, i) => {
    const row = Math.floor(i / SIDE / 4), column = Math.floor((i % SIDE) / 4);
    if (distance <= radius) image[8 * row + column] += 1 / 16;
  });
  return image;
}

/** Shear strokes until the left ends of top and bottom stand above each other. */
function straighten(strokes) {
  const points = strokes.flat();
  const [, , top, bottom] = extent(points);
  const height = bottom - top;
  if (!(height > SMALLEST)) return strokes;
  const leftmost = (rows) => Math.min(...points.filter(([, y]) => rows((y - top) / height)).map(([x]) => x));
  const lean = (leftmost((y) => y >= 0.96) - leftmost((y) => y <= 0.04)) / height;
  const shear = Math.min(Math.max(lean, -0.5), 0.5);
  return strokes.map((stroke) => stroke.map(([x, y]) => [x - shear * (y - top), y]));
}

/** How far each pixel's centre is from the nearest line. */
function distancesTo(lines) {
  const squares = new Float32Array(SIDE * SIDE).fill(Infinity);
  for (const line of lines) {
    for (let k = 0; k < Math.max(line.length - 1, 1); k++) {
      const [ax, ay] = line[k], [bx, by] = line[k + 1] ?? line[k];
      const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy || 1;
      for (let i = 0; i < squares.length; i++) {
        const px = (i % SIDE) + 0.5 - ax, py = Math.floor(i / SIDE) + 0.5 - ay;
        const t = Math.min(Math.max((px * dx + py * dy) / length, 0), 1);
        const square = (px - t * dx) ** 2 + (py - t * dy) ** 2;
        if (square < squares[i]) squares[i] = square;
      }
    }
  }
  return squares.map(Math.sqrt);
}

function extent(points) {
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  return [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
}

// ----------------------------------------------------------------------------------------------------------- examples

// Strokes by the points that they go through, in hundredths of the area above the button that clears it.
const CORNER = [0.07, 0.04], ROOM = 0.86;
const DIGITS = [
  ["50,8 26,30 24,65 48,92 72,70 74,32 50,8"],
  ["34,28 52,10", "52,10 52,90"],
  ["24,28 38,10 62,10 72,28 60,52 24,90", "24,90 76,90"],
  ["26,16 48,8 68,18 66,38 46,48", "46,48 70,56 74,74 52,92 24,84"],
  ["54,8 18,60", "18,60 82,60", "62,34 62,92"],
  ["74,10 32,10", "32,10 28,44", "28,44 50,40 72,54 72,78 48,92 24,84"],
  ["62,8 38,34 28,66 42,90 66,88 72,68 54,56 32,66"],
  ["20,16 44,8 70,14 66,34 50,92", "24,54 80,50"],
  ["68,18 50,8 32,20 42,42 64,60 70,78 50,92 30,78 38,60 60,42 68,18"],
  ["70,22 48,8 30,24 40,44 62,40 70,22", "70,22 70,60 56,88 32,90"],
];
const LETTERS = [
  ["16,90 50,10", "50,10 84,90", "28,62 72,62"],
  ["22,10 22,90", "78,10 78,90", "22,50 78,50"],
  ["24,10 24,90", "78,10 26,56", "40,44 78,90"],
  ["12,90 18,12", "18,12 50,64", "50,64 82,12", "82,12 88,90"],
  ["12,10 88,10", "50,10 50,90"],
];
const SCRIBBLES = [
  ["12,20 88,26 14,38 86,46 12,58 88,66 14,78 86,88"],
  ["50,50 56,44 62,52 52,62 38,54 42,34 64,30 78,50 66,76 36,78 18,54 28,22 62,12 90,36 88,74 60,92"],
  ["20,80 24,20 36,78 40,22 52,80 56,18 68,80 72,20 84,78", "14,30 88,70", "14,66 86,34"],
];
const SHAPES = { digit: DIGITS, letter: LETTERS, scribble: SCRIBBLES };
const shown = { digit: 2, letter: -1, scribble: -1 };

/** Strokes from the texts above: smooth curves, and lines where there are two points. */
function trace(texts) {
  return texts.map((text) => {
    const place = (number, axis) => CORNER[axis] + (ROOM * number) / 100;
    const points = text.split(" ").map((pair) => pair.split(",").map(place));
    const at = (i) => points[Math.min(Math.max(i, 0), points.length - 1)];
    const curve = points.slice(1).flatMap((_, i) => Array.from({ length: 10 }, (_, step) => {
      const t = step / 10, ends = [at(i - 1), at(i), at(i + 1), at(i + 2)];
      return [0, 1].map((axis) => {
        const [a, b, c, d] = ends.map((end) => end[axis]); // Catmull and Rom's curve
        return (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t ** 2 + (3 * b - a - 3 * c + d) * t ** 3) / 2;
      });
    }));
    return [...curve, points.at(-1)];
  });
}

/** Of fours whose top is more or less closed, the one that is most between a 4 and a 9, and known. */
async function between() {
  const fours = [];
  for (const open of [24, 28, 32, 36, 40, 44, 48]) {
    for (const middle of [49, 52, 55]) {
      for (const stem of [12, 16, 20]) {
        const hook = `${open},8 ${21 + 0.35 * (open - 21)},32 21,${middle}`;
        fours.push(trace([hook, `21,${middle} 70,${middle}`, `70,${stem} 61,94`]));
      }
    }
  }
  const found = await judge(fours.map(toImage));
  const torn = ({ probabilities: p, epistemic }) => Math.min(p[4], p[9]) - (0.5 * epistemic) / about.threshold;
  const best = found.reduce((so, each, i) => (torn(each) > torn(found[so]) ? i : so), 0);
  return fours[best];
}

// ------------------------------------------------------------------------------------------------------------ the page

const $ = (id) => document.getElementById(id);
const drawing = { strokes: [], turn: 0, noise: 0, example: false };
const noise = gaussians(64);

/** Numbers from a normal distribution, the same at every visit. */
function gaussians(count) {
  let state = 1;
  const uniform = () => (state = (state * 48271) % 2147483647) / 2147483647;
  return Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}

function rotated(point, degrees) {
  const [x, y] = [point[0] - 0.5, point[1] - 0.5];
  const cos = Math.cos((degrees * Math.PI) / 180), sin = Math.sin((degrees * Math.PI) / 180);
  return [x * cos - y * sin + 0.5, x * sin + y * cos + 0.5];
}

const visible = () => drawing.strokes.map((stroke) => stroke.map((point) => rotated(point, drawing.turn)));

function paint(strokes) {
  const pen = $("pad").getContext("2d"), side = $("pad").width;
  pen.clearRect(0, 0, side, side);
  Object.assign(pen, { lineWidth: side / 18, lineCap: "round", lineJoin: "round" });
  pen.strokeStyle = getComputedStyle($("pad")).color;
  for (const stroke of strokes) {
    pen.beginPath();
    stroke.forEach(([x, y]) => pen.lineTo(x * side, y * side));
    if (stroke.length === 1) pen.lineTo(stroke[0][0] * side, stroke[0][1] * side);
    pen.stroke();
  }
}

function paintSeen(image) {
  const pen = $("seen").getContext("2d");
  pen.clearRect(0, 0, 8, 8);
  pen.fillStyle = getComputedStyle($("seen")).color;
  image?.forEach((value, i) => {
    pen.globalAlpha = Math.min(Math.max(value, 0), 1);
    pen.fillRect(i % 8, Math.floor(i / 8), 1, 1);
  });
}

let busy = false, again = false;

/** Paint the drawing, and judge it; while a judgement is under way, only the latest drawing waits. */
async function update() {
  const strokes = visible();
  paint(strokes);
  $("hint").hidden = strokes.length > 0;
  if (busy) return void (again = true);
  busy = true;
  try {
    const image = toImage(strokes)?.map((value, i) => value + drawing.noise * noise[i]);
    paintSeen(image);
    show(image ? (await judge([image]))[0] : null);
  } finally {
    busy = false;
  }
  if (again) {
    again = false;
    await update();
  }
}

const percent = (share) => `${share > 0.995 && share < 1 ? ">99" : Math.round(100 * share)}%`;
const list = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : `${items[0]}`);

/** What a judgement is in words. */
export function words(found) {
  const answer = `${found.prediction} (${percent(found.probabilities[found.prediction])})`;
  const article = found.prediction === 8 ? "an" : "a";
  const named = found.probabilities.map((p, i) => [p, i]).filter(([p]) => p >= TORN).map(([, i]) => i);
  const torn = named.length > 1;
  const doubt = torn ? `Torn between ${list(named)}` : "Not ambiguous";
  if (found.surprising) return { known: "Unlike anything seen", torn, text: `It would still say ${answer}. ${doubt}.` };
  return { known: "Known", torn, text: torn ? `${doubt}. It says ${answer}.` : `It is ${article} ${answer}. ${doubt}.` };
}

let announcement;

function show(found) {
  const said = found ? words(found) : { known: "Draw a digit", text: "Or choose an example." };
  const main = document.querySelector("main");
  main.classList.toggle("is-known", Boolean(found && !found.surprising));
  main.classList.toggle("is-strange", Boolean(found?.surprising));
  main.classList.toggle("is-torn", Boolean(said.torn));
  $("digit").textContent = found ? found.prediction : "?";
  $("known").textContent = said.known;
  $("torn").textContent = said.text;

  // The bar is half full at the threshold, and never quite full: noise surprises a hundred times as much as a digit.
  const score = found ? Math.max(found.epistemic, 0) : 0;
  $("surprise").style.width = `${(100 * score) / (score + about.threshold)}%`;
  $("surprise-value").textContent = found ? score.toFixed(1) : "";
  const many = found && Math.round(100 * found.pValue);
  $("surprise-note").textContent = !found ? "" :
    `p = ${found.pValue.toFixed(3)}: ${many < 1 ? "fewer than 1" : many} in 100 unseen digits surprise it as much.`;
  $("ambiguity").style.width = `${found ? (100 * found.aleatoric) / Math.log(CLASSES) : 0}%`;
  $("ambiguity-value").textContent = found ? `${found.aleatoric.toFixed(2)} nats` : "";
  [...$("bars").children].forEach((row, i) => {
    const share = found ? found.probabilities[i] : 0;
    row.className = found?.prediction === i ? "top" : "";
    row.querySelector("i").style.width = `${100 * share}%`;
    row.lastElementChild.textContent = found ? percent(share) : "";
  });

  // A screen reader hears the result once the drawing rests, not at every point of a stroke.
  clearTimeout(announcement);
  announcement = setTimeout(() => {
    const numbers = found ? ` Surprise ${score.toFixed(1)}, threshold ${about.threshold.toFixed(1)}.` : "";
    $("status").textContent = `${said.known}. ${said.text}${numbers}`;
    const label = found ? `Drawing area. ${said.known}.` : "Drawing area, empty. Draw, or choose an example below.";
    $("pad").setAttribute("aria-label", label);
  }, 400);
}

function start(strokes, example) {
  Object.assign(drawing, { strokes, example });
  setTurn(0);
  setNoise(0);
}

function setTurn(degrees) {
  $("turn").value = drawing.turn = degrees;
  $("turn-value").textContent = `${degrees}°`;
}

function setNoise(deviation) {
  $("noise").value = drawing.noise = deviation;
  $("noise-value").textContent = deviation ? deviation.toFixed(2) : "none";
}

async function choose(kind) {
  if (kind === "between") return start(await between(), true);
  shown[kind] = (shown[kind] + 1) % SHAPES[kind].length;
  start(trace(SHAPES[kind][shown[kind]]), true);
}

function listen() {
  const pad = $("pad");
  const at = (event) => {
    const box = pad.getBoundingClientRect();
    return rotated([(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height], -drawing.turn);
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    if (drawing.example) start([], false); // a stroke on an example begins a drawing of one's own
    pad.setPointerCapture(event.pointerId);
    drawing.strokes.push([at(event)]);
    update();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!pad.hasPointerCapture(event.pointerId) || !drawing.strokes.length) return;
    const all = event.getCoalescedEvents?.() ?? [];
    const stroke = drawing.strokes.at(-1), before = stroke.length;
    for (const point of (all.length ? all : [event]).map(at)) {
      if (Math.hypot(point[0] - stroke.at(-1)[0], point[1] - stroke.at(-1)[1]) >= STEP) stroke.push(point);
    }
    if (stroke.length > before) update();
  });
  $("clear").addEventListener("click", () => (start([], false), update()));
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", async () => (await choose(button.dataset.example), update()));
  }
  for (const [id, set] of [["turn", setTurn], ["noise", setNoise]]) {
    $(id).addEventListener("input", async () => {
      const value = Number($(id).value);
      if (!drawing.strokes.length) await choose("digit"); // there is nothing to change yet
      set(value);
      update();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
}

for (let i = 0; i < CLASSES; i++) {
  const row = document.createElement("li");
  row.innerHTML = `<span>${i}</span><div class="track" aria-hidden="true"><i></i></div><span></span>`;
  $("bars").append(row);
}
try {
  about = await (await fetch("detector.json")).json();
  $("threshold").textContent = `threshold ${about.threshold.toFixed(1)}`;
  $("about").textContent =
    `The network was trained on ${about.train.toLocaleString("en")} digits, and is right on ` +
    `${percent(about.accuracy)} of ${about.test} others; ${percent(about.alarms)} of those surprise it, where ` +
    `${percent(about.false_alarm)} were asked for.`;
  await session;
  listen();
  await update();
} catch (error) {
  $("known").textContent = "The network could not be loaded";
  $("torn").textContent = String(error.message ?? error);
  throw error;
}
