// Tables and pictures that are wider than the page can be scrolled with the keyboard, too; and a screen reader lists the navigation
// once, not again for each of its folders and for the buttons of each block of code.
const quieten = () => {
  document.querySelectorAll(".md-typeset__scrollwrap, .glt-hero").forEach((each) => { each.tabIndex = 0; });
  document.querySelectorAll("nav nav:not([role]), nav.md-code__nav:not([role])").forEach((each) => { each.role = "group"; });
};
document$.subscribe(quieten);
new MutationObserver(quieten).observe(document.body, { childList: true, subtree: true });
