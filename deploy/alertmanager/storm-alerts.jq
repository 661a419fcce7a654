# Makes alerts of Alertmanager (`POST /api/v2/alerts`) from events `tidegate.storm`, one for each storm. The input is the
# response of `GET /v1/events`, or a single event of the topic of events.
#
# The end of a storm has the labels of its start, so that Alertmanager resolves the alert. A storm whose end is not reported,
# because its group got no further message after a change of the owner, resolves by itself after a day.

def time_of_ms: . / 1000 | floor | todate;

[(.events? // [.])[] | select(.type == "tidegate.storm")
 | .time as $time | (.data // .) as $storm
 | {
     labels: {alertname: "TidegateGroupStorm", severity: "warning", group: $storm.conversation},
     annotations: {
       summary: "Group \($storm.conversation) has a message storm: \($storm.count) messages in \($storm.windowMs / 1000) s.",
       storm: $storm.id,
       count: ($storm.count | tostring),
       peak: ($storm.peak | tostring),
       threshold: ($storm.threshold | tostring),
       window_seconds: ($storm.windowMs / 1000 | tostring),
       runbook_url: "docs/OPERATIONS.md#tidegatestorm"
     },
     startsAt: ($storm.sinceMs | time_of_ms),
     endsAt: (if $storm.state == "over" then $time else ($storm.sinceMs + 86400000 | time_of_ms) end)
   }]
