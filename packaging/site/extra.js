// Tables that are wider than the page can be scrolled with the keyboard, too.
document$.subscribe(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => { each.tabIndex = 0; }));
