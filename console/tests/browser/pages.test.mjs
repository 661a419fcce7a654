// Runs the tests of the views in one process, in which they share one browser and its warm contexts.
import "./views.test.mjs";
import "./states.test.mjs";
import "./river.test.mjs";
import "./key.test.mjs";
import "./guard.test.mjs";
