import "../styles/tokens.css";
import "../styles/base.css";
import "../styles/shell.css";
import "../styles/try.css";
import "../styles/views.css";
import "../styles/nodes.css";
import "../styles/guard.css";
import "../styles/groups.css";
import { render } from "preact";
import { followBoot } from "../live/boot.ts";
import { startPolicy } from "../live/policy.ts";
import { startStats } from "../live/stats.ts";
import { startKeys } from "./keys.ts";
import { startRouter } from "./router.ts";
import { Shell } from "./shell.tsx";
import { startTheme } from "./theme.ts";

startTheme();
startPolicy();
startRouter();
startKeys();
const root = document.getElementById("app");
if (root) render(<Shell />, root);

void followBoot().then(startStats);
