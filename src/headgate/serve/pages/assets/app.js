// Entry point of the page scripts. Each part works by itself; without scripts, pages work by reloading.
import "./actions.js";
import "./chart.js";
import "./gantt.js";
import "./graph.js";
import "./heatmap.js";
import "./log.js";
import "./palette.js";
import "./tables.js";
import "./live.js";
import "./times.js";
