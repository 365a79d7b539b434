"""The style sheet of ``report.html``: light and dark, wide and narrow, no network."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --panel: #f5f7f9; --ink: #1a1f26; --soft: #5a6472; --rule: #dde2e8;
  --own: #0a5fd0; --search: #6f9fe0; --rival: #b3540b; --second: #0b8f6d;
  --good: #157347; --bad: #b42318; --caution: #8a5a00;
  --w8: #0b4aa2; --w4: #4d8ee8; --w2: #a8c8f6; --rest: #c3c9d2; }
@media (prefers-color-scheme: dark) { :root {
  --page: #13161b; --panel: #1b2027; --ink: #e7eaef; --soft: #9aa5b4; --rule: #313945;
  --own: #6aa7ff; --search: #4877b8; --rival: #f0a056; --second: #4fd0a9;
  --good: #5fcf93; --bad: #ff8a7d; --caution: #e9bd62;
  --w8: #2f6fd0; --w4: #6aa7ff; --w2: #bcd7ff; --rest: #56606e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .25rem; }
p { margin: .5rem 0; max-width: 46rem; }
.kicker, .under, .hint, figcaption, footer { color: var(--soft); font-size: .875rem; }
.kicker { margin: 0 0 .25rem; }
.under { margin: .25rem 0 0; overflow-wrap: anywhere; }
.verdict { max-width: none; margin: 1.25rem 0; padding: .75rem 1rem; font-weight: 600;
  background: var(--panel); border-left: 4px solid var(--good); border-radius: 0 6px 6px 0; }
.verdict.bad { border-color: var(--bad); color: var(--bad); }
.verdict.caution { border-color: var(--caution); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  gap: .75rem; }
.tile { background: var(--panel); border-radius: 6px; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2; font-weight: 650; }
.tile span { display: block; font-size: .875rem; }
.tile small { display: block; color: var(--soft); font-size: .8125rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr));
  gap: 1rem 2rem; margin: .75rem 0; }
figure { margin: .75rem 0 0; max-width: 34rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
svg .tick, svg .name, svg text.reference { fill: var(--soft); }
svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--soft); fill: none; }
svg path.reference { stroke: var(--soft); stroke-dasharray: 4 4; fill: none; }
svg .mark { fill: var(--search); stroke: var(--search); color: var(--search); }
svg .search circle { fill: var(--page); stroke-width: 1.8; }
svg .chosen circle { fill: var(--search); }
svg .export { fill: var(--own); stroke: var(--own); }
svg .rival { fill: var(--rival); stroke: var(--rival); }
svg text { stroke: none; }
svg text.label { paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
svg text.export { font-weight: 650; }
svg text.search { fill: var(--soft); }
svg .bar { fill: none; stroke-width: 1.2; }
svg .line path { fill: none; stroke: var(--own); stroke-width: 1.8; }
svg .line circle { fill: var(--own); }
svg .line.values path { stroke: var(--second); stroke-dasharray: 6 3; }
svg .line.values circle { fill: var(--second); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0;
  margin: .75rem 0 0; font-size: .875rem; color: var(--soft); }
.legend li { display: flex; align-items: center; gap: .4rem; }
.legend svg { width: 22px; height: 14px; flex: none; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .75rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; white-space: normal;
  min-width: 5.5rem; }
table.groups th:nth-child(-n+3) { text-align: left; }
tr.own td { font-weight: 650; color: var(--own); }
td.code { text-align: left; }
td.code small { display: block; color: var(--soft); }
.width { display: flex; width: 10rem; height: .5rem; margin: .3rem 0 .15rem; }
.width i { height: 100%; }
.w8 { background: var(--w8); } .w4 { background: var(--w4); }
.w2 { background: var(--w2); } .rest { background: var(--rest); }
.legend i { width: 14px; height: .6rem; }
details { margin: .75rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .9375rem; }
pre { background: var(--panel); border-radius: 6px; padding: .75rem 1rem; margin: .75rem 0;
  font-size: .875rem; white-space: pre-wrap; overflow-wrap: anywhere; }
ul.notes { padding-left: 1.2rem; max-width: 46rem; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: .75rem; }
"""
