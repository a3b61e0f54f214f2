
"use strict";
// Shows the values of the mark next to the pointer or finger, at once. The texts are those of title elements, which browsers
// show without scripts, too, after a while.
for (const title of document.querySelectorAll("svg title")) {
    const of = title.parentNode;
    of.setAttribute(of.matches("svg") ? "aria-label" : "data-tip", title.textContent);
    title.remove();
}
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
const show = event => {
    let best = null, least = 24;
    const plot = event.target.closest("svg.plot");
    for (const mark of plot ? plot.querySelectorAll("[data-tip]") : []) {
        const box = mark.getBoundingClientRect();
        const away = Math.hypot(Math.max(box.left - event.clientX, 0, event.clientX - box.right),
            Math.max(box.top - event.clientY, 0, event.clientY - box.bottom));
        if (least > away)
            [best, least] = [mark, away];
    }
    tip.textContent = best ? best.getAttribute("data-tip") : "";
    const right = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, right)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
};
addEventListener("pointermove", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.textContent = ""; }, {passive: true});
