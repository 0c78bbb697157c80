"""How the report looks, in light and dark."""

COLOURS = (
    "#7a7f87", "#1f77d0", "#d9640f", "#17924a", "#9a4fc4", "#c4314b", "#8a6d1d", "#0f8f94", "#d04f9b", "#5560d8",
)  # fmt: skip

STYLE = (
    """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5d6672;--paper:#fff;--card:#f6f7f9;--rule:#dfe3e8;--best:#e7f4ea}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#9aa3ad;--paper:#14171a;--card:#1d2126;--rule:#343a41;
--best:#1c3324}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:8px 0 4px}h2{font-size:17px;margin:18px 0 8px}.lead{font-size:18px;margin:4px 0 12px}
.warning{border-left:4px solid #d9640f;background:var(--card);padding:8px 14px;margin:8px 0 14px}
.small{color:var(--soft);font-size:13px}
dl{display:flex;flex-wrap:wrap;gap:10px;margin:0}
dl div{background:var(--card);border-radius:8px;padding:8px 16px}dt{color:var(--soft);font-size:12px}
dd{margin:0;font-size:18px;font-weight:600}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-size:12.5px;font-weight:600}
tr.best{background:var(--best);font-weight:600}
table.plain{width:auto}table.plain td{text-align:left;padding:3px 14px 3px 0;border:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:20px 32px}
svg{width:100%;height:auto;overflow:visible}svg text{fill:var(--soft);font-size:11px;font-family:inherit}
.grid{stroke:var(--rule)}.zero{stroke:var(--soft)}.join{stroke:var(--soft);opacity:.45;stroke-width:2}.frame{fill:none;stroke:var(--rule)}
.line{fill:none!important;stroke-width:2.2}.band{opacity:.15;stroke:none!important}
.right{fill:#1f77d0}.wrong{fill:#d0342c}
.legend{margin:2px 0;display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}
.looks{width:auto}.looks td{border:0;padding:3px 6px}.looks img{display:block;width:92px;border-radius:4px}
pre{background:var(--card);padding:10px 14px;border-radius:8px;overflow-x:auto;font-size:13px}
summary{cursor:pointer;margin:12px 0}
"""
    # With more variants than colours they begin again: without one, a curve is not seen and its band is black.
    + "".join(f".c{i}{{fill:{c};stroke:{c}}}i.c{i}{{background:{c}}}" for i, c in enumerate(COLOURS * 4))
    + "rect[class^=c]{stroke:none}"
)
