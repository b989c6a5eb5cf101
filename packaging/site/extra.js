// Tables, pictures and code that are wider than the page can be scrolled with the keyboard, too; and for a screen reader, folders
// of the navigation have names of their own, and the buttons of a block of code are no navigation.
const name = () => {
  document.querySelectorAll(".md-typeset__scrollwrap, .glt-hero").forEach((each) => { each.tabIndex = 0; });
  document.querySelectorAll(".md-typeset pre > code").forEach((each) => {
    if (each.scrollWidth > each.clientWidth) { each.tabIndex = 0; }
  });
  document.querySelectorAll("nav:is(.md-code__nav, .md-search__options):not([role])").forEach((each) => {
    each.removeAttribute("aria-label");
    each.role = "presentation";
  });
  document.querySelectorAll("nav nav[aria-labelledby]").forEach((each) => {
    const title = each.querySelector(".md-nav__title");
    each.removeAttribute("aria-labelledby");
    each.setAttribute("aria-label", `Pages of ${title.textContent.trim()}`);
  });
};
document$.subscribe(name);
addEventListener("resize", name);
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
