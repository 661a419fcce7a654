// Runs these tests in one process, in which they share one browser and its warm contexts.
import "./states.test.mjs";
import "./river.test.mjs";
import "./key.test.mjs";
import "./guard.test.mjs";
import "./groups.test.mjs";
