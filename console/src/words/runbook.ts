/** What to do about a state: the alert of the runbook that treats it, and the first steps in short. */
export interface Runbook {
  readonly alert: keyof typeof STEPS;
  readonly steps: readonly string[];
}

/** First steps by the name of the alert, as in the section of that name in the runbook of the repository. */
const STEPS = {
  TidegateArchiveBehind: [
    "Repair Postgres: does it run, does it accept writes, is its disk full? The nodes then accept sends again by themselves.",
    "If that takes long, raise the topic’s retention in Kafka first, before it deletes records that are not archived.",
  ],
  TidegatePartitionsWithoutOwner: [
    "tidegate owners shows which partitions; a live node takes them over within seconds.",
    "If it lasts: the log of their last owner has “owner exited”, with the reason. Check that the nodes reach Kafka, Redis and Postgres.",
    "If no log has a reason, restart the nodes one at a time.",
  ],
  TidegateNodeDied: [
    "Find out why it ended: exit code 137 is a kill, mostly by memory or by too short a grace period.",
    "If its log ends with “was retired”, it was frozen or without Redis for more than 10 s. No accepted message is lost.",
  ],
  TidegateRedisAway: [
    "Check Redis; with Sentinel, whether there is a master. Connected clients stay, but nobody can log in.",
    "Restart nothing: the nodes restore their routes when it is back.",
  ],
  TidegateNodeFull: [
    "All nodes full: add nodes. One node full: clients spread as they reconnect, and a drain spreads them at once.",
    "High memory with few connections means slow readers; one address with all clients needs a higher limits.conns_per_ip.",
  ],
  TidegateArchiveLag: [
    "Is Postgres running, does it accept writes, is its disk full? pg_stat_activity shows what its sessions wait for.",
    "If it grows while Postgres is healthy, add nodes, or give Postgres more.",
  ],
  TidegateStorm: [
    "One sender, or many? tidegate tail shows the messages of a group to a member. A rule of the level user, or limits.sends_per_second, bounds what each user sends.",
    "If only admins should post for a while, set post of the group to admins, and back afterwards.",
    "Busy groups that are no problem: raise storm.threshold, and reload.",
  ],
} as const;

/** File of the repository that has the runbook. */
export const RUNBOOK_FILE = "docs/OPERATIONS.md";

/** The first steps of an alert. */
export function runbook(alert: keyof typeof STEPS): Runbook {
  return { alert, steps: STEPS[alert] };
}

/** Names of all alerts that the page knows steps for. */
export const ALERTS = Object.keys(STEPS) as (keyof typeof STEPS)[];
