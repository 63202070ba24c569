const { config, figures } = JSON.parse(document.getElementById("charts").textContent);

// Colours are CSS variables in the SVG, so changing the theme or printing needs no redrawing.
const views = [];
async function draw() {
  for (const [name, specs] of Object.entries(figures)) {
    const place = document.querySelector(`[data-figure="${name}"]`);
    for (const spec of place ? specs : []) {
      const box = place.appendChild(document.createElement("div"));
      const options = { config, renderer: "svg", actions: false, tooltip: { theme: "custom" } };
      const { view } = await vegaEmbed(box, spec, options);
      views.push([view, view.height(), box]);
    }
  }
  document.documentElement.dataset.drawn = "yes";
}

function theme() {
  const names = ["auto", "light", "dark"], button = document.getElementById("theme");
  let stored = null;
  try { stored = localStorage.getItem("assay-theme"); } catch { /* a file may have no storage */ }
  const show = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = `Colours: ${name}`;
  };
  let current = names.includes(stored) ? stored : "auto";
  show(current);
  button.addEventListener("click", () => {
    current = names[(names.indexOf(current) + 1) % names.length];
    show(current);
    try { localStorage.setItem("assay-theme", current); } catch { /* as above */ }
  });
}

const wordsOf = (search) => search.value.toLowerCase().split(/\s+/).filter(Boolean);

// Rows of a table that hold every word.
function rows() {
  for (const search of document.querySelectorAll("input[data-rows]"))
    search.addEventListener("input", () => {
      const words = wordsOf(search);
      for (const row of document.getElementById(search.dataset.rows).tBodies[0].rows)
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
}

function samples() {
  const search = document.getElementById("search");
  if (!search) return;
  const rows = [...document.querySelectorAll(".completion")].map((element) => ({
    element, model: [element.dataset.model], status: [element.dataset.status], tag: JSON.parse(element.dataset.tags),
    text: [...element.closest(".problem").querySelectorAll(".id, .text, .gold"), element]
      .map((part) => part.textContent).join("\n").toLowerCase(),
  }));
  const selects = ["model", "status", "tag"].map((key) => [key, document.getElementById(`filter-${key}`)]);
  for (const [key, select] of selects) {
    for (const value of new Set(rows.flatMap((row) => row[key]))) select.add(new Option(value, value));
    select.parentElement.hidden = select.options.length < 3;
  }
  const apply = () => {
    const words = wordsOf(search);
    let shown = 0;
    for (const row of rows) {
      const fits = selects.every(([key, select]) => !select.value || row[key].includes(select.value))
        && words.every((word) => row.text.includes(word));
      row.element.hidden = !fits;
      shown += fits;
    }
    for (const problem of document.querySelectorAll(".problem"))
      problem.hidden = !problem.querySelector(".completion:not([hidden])");
    document.getElementById("shown").textContent = `${shown} of ${rows.length} completions shown.`;
  };
  search.form.addEventListener("submit", (event) => event.preventDefault());
  for (const event of ["input", "change"]) search.form.addEventListener(event, apply);
  apply();
}

// The paper has its own width: charts are laid out anew for it, and of the samples the first few are unfolded.
function print() {
  let opened = [];
  const fit = (scale) => {
    for (const [view, height, box] of views) view.width(box.clientWidth).height(height * scale).run();
  };
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    fit(0.75);
    const problems = [...document.querySelectorAll(".problem:not([hidden])")];
    problems.forEach((problem, i) => problem.classList.toggle("unprinted", i >= 3));
    opened = problems.slice(0, 3).flatMap((problem) => [...problem.querySelectorAll("details:not([open])")]);
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    fit(1);
    for (const details of opened) details.open = false;
  });
}

theme();
rows();
samples();
print();
draw();
