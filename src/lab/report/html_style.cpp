#include "lab/report/html_parts.h"

namespace flashlab::lab::report {

namespace {

constexpr const char* kPageStyles = R"css(
:root{color-scheme:light dark;--ground:#f5f6f8;--card:#fff;--text:#1f2937;--muted:#5b6472;
--line:#dfe3e8;--soft:#eef0f3;--accent:#0063a0;--best:#00694d;--best-ground:#e3f4ed;
--warn:#8a4b00;--warn-ground:#fff4e0;--bad:#a3262a;--bad-ground:#fdeaea}
@media screen and (prefers-color-scheme:dark){:root{--ground:#0e1116;--card:#14181e;--text:#e6e9ee;
--muted:#a4adba;--line:#2c333d;--soft:#1d222a;--accent:#6db8ee;--best:#5fd6ae;
--best-ground:#12342a;
--warn:#f0b45c;--warn-ground:#33260f;--bad:#f08a8d;--bad-ground:#3a181a}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--ground);color:var(--text);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif}
.wrap{max-width:1180px;margin:0 auto;padding:0 20px}
main.wrap{max-width:1720px}
.skip{position:absolute;left:-999px}
.skip:focus{left:8px;top:8px;background:var(--card);padding:8px 12px;z-index:9}
a{color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
header.top{background:var(--card);border-bottom:1px solid var(--line);padding:36px 0 28px}
.brand{margin:0 0 6px;font-size:13px;font-weight:600;letter-spacing:.08em;text-transform:uppercase;
color:var(--accent)}
h1{font-size:clamp(24px,3.6vw,34px);line-height:1.2;margin:0 0 8px;font-weight:680;
overflow-wrap:anywhere;text-wrap:balance}
h2{font-size:22px;line-height:1.3;margin:0 0 6px;font-weight:650}
h3{font-size:16px;line-height:1.4;margin:28px 0 10px;font-weight:620;overflow-wrap:anywhere}
p{margin:0 0 12px}
.meta{color:var(--muted);font-size:14px;margin:0;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;
margin:24px 0 0;padding:0;list-style:none}
.tiles li{border:1px solid var(--line);border-radius:10px;padding:14px 16px;
background:var(--ground)}
.tiles b{display:block;font-size:27px;line-height:1.2;font-weight:680;
font-variant-numeric:tabular-nums}
.tiles span{display:block;margin-top:4px;font-size:13px;line-height:1.4;color:var(--muted);
overflow-wrap:anywhere}
.verdict{margin:22px 0 0;padding:0 0 0 20px;max-width:100ch}
.verdict li{margin:0 0 4px;overflow-wrap:anywhere}
nav.contents{position:sticky;top:0;z-index:5;background:var(--card);
border-bottom:1px solid var(--line)}
nav.contents ul{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0;padding:10px 0;list-style:none;
overflow-x:auto;
font-size:14px;white-space:nowrap}
nav.contents a{text-decoration:none}
nav.contents a:hover{text-decoration:underline}
section{margin:24px 0;padding:24px 24px 20px;background:var(--card);border:1px solid var(--line);
border-radius:12px;scroll-margin-top:56px}
.lead{color:var(--muted);max-width:96ch;margin:0 0 16px;font-size:15px}
.scroll{overflow-x:auto;margin:0 0 12px;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:14px;line-height:1.4}
caption{text-align:left;padding:10px 12px;font-weight:620;caption-side:top}
th,td{padding:7px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
thead th{background:var(--soft);font-weight:600;color:var(--muted);font-size:13px;
white-space:nowrap;vertical-align:bottom}
thead th.over{text-align:center;border-left:1px solid var(--line);color:var(--text)}
tbody th{font-weight:600;min-width:9em;max-width:26em;overflow-wrap:anywhere}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.first,th.first{border-left:1px solid var(--line)}
td.best{color:var(--best);background:var(--best-ground);font-weight:650}
td.bad{color:var(--bad);font-weight:650}
tbody th.long{min-width:25em}
tbody .long{min-width:16em;max-width:34em;overflow-wrap:anywhere}
.why{display:block;font-size:13px;color:var(--muted)}
tr:has(+tr.note)>*{border-bottom:0}tr.note td{padding-top:0;border-left:0}
.meter{display:block;height:4px;margin-top:4px;border-radius:2px;background:var(--soft);
min-width:44px}
.meter i{display:block;height:4px;border-radius:2px;background:var(--accent)}
ul.winners{margin:0 0 22px;padding:0;list-style:none;font-size:14px;display:flex;flex-wrap:wrap;
gap:4px 24px}
ul.winners b{font-weight:620}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:16px;
align-items:start;margin:0 0 16px}
figure{margin:0;border:1px solid var(--line);border-radius:8px;padding:6px;min-width:0;
background:var(--card);break-inside:avoid;max-width:560px}
.fl-chart{display:block;width:100%;height:auto}
details{margin:0 0 10px}
summary{cursor:pointer;font-weight:600;padding:6px 0;overflow-wrap:anywhere}
.warning{border-left:4px solid var(--warn);background:var(--warn-ground);padding:10px 14px;
border-radius:0 8px 8px 0;margin:0 0 10px;overflow-wrap:anywhere}
.warning b{color:var(--warn)}
.callout{border-left:4px solid var(--accent);background:var(--soft);padding:10px 14px;
border-radius:0 8px 8px 0;margin:0 0 12px;overflow-wrap:anywhere}
.callout.regression{border-color:var(--bad);background:var(--bad-ground)}
pre{margin:0 0 12px;padding:14px 16px;background:var(--soft);border-radius:8px;overflow-x:auto;
font:14px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre-wrap;
overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:minmax(8em,max-content) 1fr;gap:6px 24px;margin:0;
font-size:15px}
dt{font-weight:600}
dd{margin:0;color:var(--muted);min-width:0;overflow-wrap:anywhere;max-width:78ch}
footer{padding:8px 0 40px;color:var(--muted);font-size:13px}
th[aria-sort]{cursor:pointer}
th[aria-sort=ascending]::after{content:" \25b4"}th[aria-sort=descending]::after{content:" \25be"}
@media (max-width:640px){.wrap{padding:0 10px}header.top{padding:24px 0 20px}
section{padding:18px 12px 14px;margin:14px 0}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tiles li{padding:10px 12px}.tiles b{font-size:21px}dl{grid-template-columns:1fr;gap:0}
dd{margin:0 0 10px}th,td{padding:6px 9px}tbody th{min-width:7em}figure{padding:2px 0}
nav.contents ul{flex-wrap:nowrap;padding:10px 14px 10px 0}}
@media print{.tiles{grid-template-columns:repeat(4,1fr)}body{background:#fff;font-size:11pt}
nav.contents,.skip{display:none}
section,figure,.tiles li,.scroll{border-color:#bbb}section{break-inside:auto;padding:12px 0;
border-width:1px 0 0;border-radius:0}.wrap{max-width:none;padding:0}
.scroll{overflow:visible}table{font-size:8.5pt}th,td{padding:3px 5px}
thead{display:table-header-group}tr,.tiles li{break-inside:avoid}h2,h3{break-after:avoid}
.plots{grid-template-columns:1fr 1fr}td.best{background:none}}
)css";

// No "less than" and no ampersand: the page is well-formed XML, too. A note stays under its row;
// where heads stand over several columns those below them sort.
constexpr const char* kPageScript = R"js(
const units = {KiB: 1, MiB: 2, GiB: 3, TiB: 4};
const valueOf = cell => {
  const text = cell.textContent.trim().replaceAll(",", "");
  const number = parseFloat(text);
  if (Number.isNaN(number)) return null;
  return number * 1024 ** (units[text.split(" ")[1]] ?? 0);
};
const compare = (a, b) => {
  const [x, y] = [valueOf(a), valueOf(b)];
  if (x === null || y === null) return a.textContent.localeCompare(b.textContent);
  return x - y;
};
for (const table of document.querySelectorAll("table")) {
  const titles = [...table.querySelectorAll("thead th:not(.over)")];
  const sort = column => {
    const up = titles[column].getAttribute("aria-sort") === "descending";
    titles.forEach(title => title.setAttribute("aria-sort", "none"));
    titles[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const groups = [];
    for (const row of body.rows) {
      if (row.classList.contains("note")) groups.at(-1).push(row);
      else groups.push([row]);
    }
    // A row without figures has one cell in their place, and stays at the end.
    const whole = groups.filter(([row]) => row.cells.length === titles.length);
    const rest = groups.filter(([row]) => row.cells.length !== titles.length);
    whole.sort(([a], [b]) => compare(a.cells[column], b.cells[column]));
    if (!up) whole.reverse();
    body.append(...whole.flat(), ...rest.flat());
  };
  titles.forEach((title, column) => {
    title.setAttribute("aria-sort", "none");
    title.tabIndex = 0;
    title.addEventListener("click", () => sort(column));
    title.addEventListener("keydown", event => { if (event.key === "Enter") sort(column); });
  });
}
)js";

}  // namespace

std::string page_styles() {
  return kPageStyles;
}

std::string page_script() {
  return std::string("<script>\n//<![CDATA[") + kPageScript + "//]]>\n</script>\n";
}

}  // namespace flashlab::lab::report
