"use strict";

// What lessons show asks JupyterLab's attribute whether the page is light or dark.
function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const say = () => {
    const chosen = document.body.dataset.theme;
    const isDark = chosen === "dark" || (chosen !== "light" && dark.matches);
    document.body.dataset.jpThemeLight = String(!isDark);
  };
  new MutationObserver(say).observe(document.body, { attributeFilter: ["data-theme"] });
  dark.addEventListener("change", say);
  say();
}

// Python in the page: loaded when it is first asked for, from beside this script, so that a file: address does too.
const beside = new URL(".", document.currentScript.src);
let python = null;

function loadScript(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(name, beside);
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${name} is not there`));
    document.head.append(script);
  });
}

function loadPython() {
  python ??= loadScript("brython.js").then(() => loadScript("python.js")).then(() => {
    __BRYTHON__.parse_options({ debug: 0, indexedDB: false });
    __BRYTHON__.runPythonSource(
      "import json\nfrom browser import window\nfrom answer import answer_html\n" +
      "window.answerOf = lambda text: answer_html(json.loads(text))\n", "calculator");
    return window.answerOf;
  });
  return python;
}

function settingsOf(form) {
  const settings = {};
  for (const control of form.elements) {
    if (control.type === "checkbox") settings[control.name] = control.checked;
    else if (control.type === "range") settings[control.name] = JSON.parse(control.dataset.values)[control.value];
    else if (control.name) settings[control.name] = control.value;
  }
  return settings;
}

function showValues(form) {
  for (const slider of form.querySelectorAll("input[type=range]")) {
    const value = JSON.parse(slider.dataset.values)[slider.value];
    slider.nextElementSibling.value = value;
    slider.setAttribute("aria-valuetext", value);
  }
}

function startCalculator(calculator) {
  const form = calculator.querySelector("form");
  const answer = calculator.querySelector(".calculator-answer");
  form.addEventListener("input", async () => {
    showValues(form);
    answer.setAttribute("aria-busy", "true");
    try {
      const answerOf = await loadPython();
      answer.innerHTML = answerOf(JSON.stringify(settingsOf(form)));
    } catch (problem) {
      console.error(problem);
      answer.textContent = "The calculator cannot be loaded; the browser's console says why.";
    }
    answer.removeAttribute("aria-busy");
  });
}

followTheme();
document.querySelectorAll(".calculator").forEach(startCalculator);
