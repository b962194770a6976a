"use strict";
// Where nobody has said where this page will be, it is where it is.
const main = document.querySelector("main");
const here = new URL(".", location.href).href;
for (const line of document.querySelectorAll(".line code")) {
  line.textContent = line.textContent.replace(main.dataset.unknown, here);
}
if (navigator.clipboard) {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = "Copied";
    });
  }
}
