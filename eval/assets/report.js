const { config, figures } = JSON.parse(document.getElementById("charts").textContent);

// Colours are CSS variables in the SVG, so changing the theme or printing needs no redrawing.
async function draw() {
  for (const [name, specs] of Object.entries(figures)) {
    const place = document.querySelector(`[data-figure="${name}"]`);
    for (const spec of specs) {
      const box = place.appendChild(document.createElement("div"));
      await vegaEmbed(box, spec, { config, renderer: "svg", actions: false, tooltip: { theme: "custom" } });
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

function samples() {
  const search = document.getElementById("search");
  if (!search) return;
  const rows = [...document.querySelectorAll(".completion")].map((element) => ({
    element, model: [element.dataset.model], status: [element.dataset.status], tag: JSON.parse(element.dataset.tags),
    text: (element.closest(".problem").querySelector(".text").textContent + "\n" + element.closest(".problem")
      .querySelector(".id").textContent + "\n" + element.textContent).toLowerCase(),
  }));
  const selects = ["model", "status", "tag"].map((key) => [key, document.getElementById(`filter-${key}`)]);
  for (const [key, select] of selects) {
    for (const value of new Set(rows.flatMap((row) => row[key]))) select.add(new Option(value, value));
    select.parentElement.hidden = select.options.length < 3;
  }
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
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

theme();
samples();
draw();
