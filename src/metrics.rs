//! Metrics: all names with their descriptions, and the handles through which the code counts.

use std::{ops::Deref, sync::Arc};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

mod histogram;

pub use self::histogram::Durations;
use crate::figures::CodeCounts;

macro_rules! metrics {
    ($($kind:ident $field:ident $name:literal $what:literal)*) => {
        /// One handle per metric, created at start so that every series exists at 0.
        pub struct Handles {
            $(#[doc = $what] pub $field: metrics!(@type $kind),)*
            /// Codes given to clients; the console shows them, no series does.
            pub codes: Arc<CodeCounts>,
        }

        /// Every metric as (kind, name, description), for the docs and their check.
        pub const ALL: &[(&str, &str, &str)] = &[$((stringify!($kind), $name, $what),)*];

        impl Metrics {
            fn describe() -> Self {
                $(metrics!(@describe $kind $name $what);)*
                Self(Arc::new(Handles { $($field: metrics!(@make $kind $name),)* codes: Arc::default() }))
            }

            /// Appends the metrics that the recorder does not have.
            fn render(&self, page: &mut String) {
                $(metrics!(@render $kind self $field $name $what page);)*
            }
        }
    };
    (@type counter) => { Counter };
    (@type gauge) => { Gauge };
    (@type histogram) => { Durations };
    (@describe counter $name:literal $what:literal) => { describe_counter!($name, $what) };
    (@describe gauge $name:literal $what:literal) => { describe_gauge!($name, $what) };
    (@describe histogram $name:literal $what:literal) => {};
    (@make counter $name:literal) => { counter!($name) };
    (@make gauge $name:literal) => { gauge!($name) };
    (@make histogram $name:literal) => { Durations::default() };
    (@render histogram $self:ident $field:ident $name:literal $what:literal $page:ident) => { $self.$field.render($name, $what, $page) };
    (@render $kind:ident $self:ident $field:ident $name:literal $what:literal $page:ident) => {};
}

metrics! {
    gauge conns "tidegate_connections" "Open connections."
    counter accepted "tidegate_connections_accepted_total" "Connections accepted."
    counter refused "tidegate_connections_refused_total" "Connections refused on accept: caps, memory or full queues."
    counter tls_handshakes "tidegate_tls_handshakes_total" "TLS handshakes of clients that succeeded."
    counter tls_failures "tidegate_tls_failures_total" "TLS handshakes of clients that failed: no common version or name, a certificate that either side refused, or bytes that are no TLS."
    counter openings_late "tidegate_openings_late_total" "Connections closed because their PROXY header or TLS handshake was not complete in time."
    counter proxy_headers_foreign "tidegate_proxy_headers_foreign_total" "Connections from outside of listen.proxies that began with a PROXY header, or with a second one; they are refused."
    counter forwarded_foreign "tidegate_forwarded_headers_foreign_total" "Upgrades and assign requests with X-Forwarded-For or Forwarded from outside of listen.forwarders; the header is ignored. Rises with each client of a proxy that is not listed."
    gauge tls_expires "tidegate_tls_certificate_expires_seconds" "When the first certificate of the client port, the admin port and the link expires, in seconds since 1970; 0 without any."
    counter tls_reloads "tidegate_tls_reloads_total" "Times the certificates of a port were read again."
    counter tls_reload_errors "tidegate_tls_reload_errors_total" "Times changed certificates could not be used; the former ones stay in force."
    counter closed "tidegate_connections_closed_total" "Connections ended, for any reason."
    counter slow "tidegate_slow_closes_total" "Connections closed because they read too slowly."
    counter panics "tidegate_conn_panics_total" "Panics that ended one connection or one query; should stay 0."
    counter logins "tidegate_logins_total" "Logins that succeeded."
    histogram login_times "tidegate_login_seconds" "Time from the hello of a client to its welcome, of logins that succeeded."
    counter login_refusals "tidegate_login_refusals_total" "Logins refused."
    counter tokens_expired "tidegate_tokens_expired_total" "Tokens refused because exp has passed."
    counter tokens_revoked "tidegate_tokens_revoked_total" "Tokens refused because they are revoked."
    counter token_ends "tidegate_token_expiries_total" "Connections closed because their token has expired."
    counter refreshes "tidegate_token_refreshes_total" "Tokens replaced by a newer one without a new connection."
    counter refresh_refusals "tidegate_token_refresh_refusals_total" "Refreshes of tokens refused; the connection continues with its token."
    counter kicks "tidegate_kicks_total" "Connections closed by DELETE /v1/connections and DELETE /v1/users/{user}/connections."
    counter revoked_closes "tidegate_revocation_closes_total" "Connections closed because their token was revoked."
    gauge revocations "tidegate_revocations" "Revocations in force on this node."
    counter guard_read_errors "tidegate_guard_read_errors_total" "Times the entries of the guard (rules and the like) could not be read from the store; the known ones stay in force."
    gauge bans "tidegate_bans" "Bans of networks, users and devices that this node has in force."
    counter ban_refusals "tidegate_ban_refusals_total" "Connections, logins and assign requests refused because of a ban (BANNED)."
    counter ban_closes "tidegate_ban_closes_total" "Open connections closed because of a ban (KICKED)."
    counter evidence_token_forged "tidegate_evidence_token_forged_total" "Security events token_forged: token signed with another key."
    counter evidence_token_algorithm "tidegate_evidence_token_algorithm_total" "Security events token_algorithm: token that is not signed, or with another algorithm than the key's."
    counter evidence_token_malformed "tidegate_evidence_token_malformed_total" "Security events token_malformed: token that is no JWT, too large, or with claims that are not well formed."
    counter evidence_token_unknown_key "tidegate_evidence_token_unknown_key_total" "Security events token_unknown_key: token of a key that the node does not know; a key that was just replaced looks the same."
    counter evidence_token_denied "tidegate_evidence_token_denied_total" "Security events token_denied: token for another audience, of another issuer or out of its time, or credential that the hook `login` refused."
    counter evidence_token_expired "tidegate_evidence_token_expired_total" "Security events token_expired: token that has expired or is revoked."
    counter evidence_frame_malformed "tidegate_evidence_frame_malformed_total" "Security events frame_malformed: frame that can't be decoded, or first bytes of no known framing."
    counter evidence_upgrade_refused "tidegate_evidence_upgrade_refused_total" "Security events upgrade_refused: first bytes of an HTTP request that are no HTTP."
    counter evidence_http_refused "tidegate_evidence_http_refused_total" "Security events http_refused: request of HTTP or TLS that the client port does not serve, as any web page can make its visitors send."
    counter evidence_hello_timeout "tidegate_evidence_hello_timeout_total" "Security events hello_timeout: no complete Hello in time."
    counter evidence_limit_hit "tidegate_evidence_limit_hit_total" "Security events limit_hit: request over a limit."
    counter evidence_impatience "tidegate_evidence_impatience_total" "Security events impatience: message sent again before the wait that the node named was over."
    counter evidence_probe "tidegate_evidence_probe_total" "Security events probe: request for a group, a conversation or a room that does not exist, or of which the user is no member."
    counter evidence_order_blocked "tidegate_evidence_order_blocked_total" "Security events order_blocked: chain of messages whose next one did not come in time."
    counter evidence_connect_flood "tidegate_evidence_connect_flood_total" "Security events connect_flood: connection over the limits of its address."
    counter evidence_key_refused "tidegate_evidence_key_refused_total" "Security events key_refused: key that the admin port refused."
    counter evidence_gateway_denied "tidegate_evidence_gateway_denied_total" "Security events gateway_denied: request that the gateway answered with 401 or 403."
    counter evidence_gateway_not_found "tidegate_evidence_gateway_not_found_total" "Security events gateway_not_found: request that the gateway answered with 404."
    counter evidence_gateway_captcha "tidegate_evidence_gateway_captcha_total" "Security events gateway_captcha: request for a captcha, by `evidence.captcha_paths`."
    counter evidence_gateway_login "tidegate_evidence_gateway_login_total" "Security events gateway_login: request to a login at the gateway, by `evidence.login_paths`."
    counter evidence_scope_missing "tidegate_evidence_scope_missing_total" "Security events scope_missing: request that the caller's key of the admin port does not allow."
    counter evidence_dropped "tidegate_evidence_dropped_total" "Security events that are only counted, because more than 4,096 sources caused some within a second."
    counter evidence_file_errors "tidegate_evidence_file_errors_total" "Times security events could not be written to evidence.file, or removed from it."
    counter automatic_bans "tidegate_automatic_bans_total" "Bans because of the score of a network or a user."
    counter automatic_suspensions "tidegate_automatic_suspensions_total" "Suspensions of devices because of blocked chains."
    counter gateway_bans_failed "tidegate_gateway_bans_failed_total" "Times the bans of networks could not be written to the gateway of evidence.apisix_url; retried."
    counter decisions_dropped "tidegate_guard_decisions_dropped_total" "Times an automatic ban or suspension was put off because of too many in a minute, or given up because the store was full or took none for too long."
    gauge suspensions "tidegate_suspensions" "Suspensions of users and devices that this node has in force."
    counter suspended_sends "tidegate_suspended_sends_total" "Messages refused with SUSPENDED."
    gauge closed_rooms "tidegate_closed_rooms" "Live rooms that are closed, as this node knows them."
    counter room_closed_refusals "tidegate_room_closed_refusals_total" "Joins, messages and reactions refused with ROOM_CLOSED."
    counter room_closed_removals "tidegate_room_closed_removals_total" "Connections removed from live rooms because the rooms were closed."
    counter revocation_read_errors "tidegate_revocation_read_errors_total" "Times the revocations could not be read from the store; the known ones stay in force."
    counter tokens_time "tidegate_tokens_time_total" "Tokens refused because nbf has not come, or because they are valid for longer than auth.max_lifetime_s."
    counter tokens_foreign "tidegate_tokens_foreign_total" "Tokens refused because of another issuer or audience."
    counter tokens_unknown_key "tidegate_tokens_unknown_key_total" "Tokens refused because no key has their kid."
    counter tokens_algorithm "tidegate_tokens_algorithm_total" "Tokens refused because their algorithm is not that of the key, or none."
    counter tokens_forged "tidegate_tokens_forged_total" "Tokens refused because they are signed with another key."
    counter tokens_malformed "tidegate_tokens_malformed_total" "Tokens refused because they are no JWT, too large, or have claims that are not well formed."
    counter tokens_deferred "tidegate_tokens_deferred_total" "Tokens refused for now: too many waited for a check, or the keys were never loaded."
    histogram hook_login_times "tidegate_hook_login_seconds" "Time of the questions by the hook `login`, failed ones included."
    counter hook_login_calls "tidegate_hook_login_calls_total" "Questions about a credential by the hook `login`, without those answered from the cache."
    counter hook_login_denials "tidegate_hook_login_denials_total" "Credentials that the hook `login` refused, without those refused from the cache."
    counter hook_login_cached_denials "tidegate_hook_login_cached_denials_total" "Credentials refused from the cache: within the last 5 s the hook `login` refused them, or gave an answer that is not valid."
    counter hook_login_failures "tidegate_hook_login_failures_total" "Questions of the hook `login` without a valid answer: timeout, no connection, another status than 200, too large, not the expected JSON, too many at a time, or an open breaker."
    histogram hook_allow_times "tidegate_hook_allow_seconds" "Time of the questions by the hook `allow`, failed ones included."
    counter hook_allow_calls "tidegate_hook_allow_calls_total" "Questions by the hook `allow`, without those answered from the cache."
    counter hook_allow_denials "tidegate_hook_allow_denials_total" "Questions that the hook `allow` answered with no, without those answered from the cache."
    counter hook_allow_cached_denials "tidegate_hook_allow_cached_denials_total" "Requests refused from the cache, because the hook `allow` has answered the same question with no."
    counter hook_allow_failures "tidegate_hook_allow_failures_total" "Questions of the hook `allow` without a valid answer, for the reasons of hook_login_failures, or because too many of one user are in flight."
    counter hook_allow_unchecked "tidegate_hook_allow_unchecked_total" "Requests allowed without an answer of the hook `allow`, because hooks.allow_fail is open."
    histogram hook_before_times "tidegate_hook_before_seconds" "Time of the questions by the hook `message.before`, failed ones and the wait for others included."
    counter hook_before_calls "tidegate_hook_before_calls_total" "Messages and edits that the hook `message.before` was asked about."
    counter hook_before_requests "tidegate_hook_before_requests_total" "Requests of the hook `message.before`, each about up to 32 messages."
    counter hook_before_denials "tidegate_hook_before_denials_total" "Messages and edits that the hook `message.before` refused."
    counter hook_before_replacements "tidegate_hook_before_replacements_total" "Messages and edits whose content the hook `message.before` replaced."
    counter hook_before_failures "tidegate_hook_before_failures_total" "Messages and edits without a valid answer of the hook `message.before`, for the reasons of hook_login_failures, or because too many of one user wait."
    counter hook_before_unchecked "tidegate_hook_before_unchecked_total" "Messages and edits accepted without an answer of the hook `message.before`, because hooks.before_fail is open."
    gauge webhooks "tidegate_webhooks" "Endpoints of webhooks."
    gauge webhooks_failing "tidegate_webhooks_failing" "Endpoints of webhooks that fail on this node: nothing that it sends succeeds, a cursor can't be read, or the definition can't be used."
    gauge webhook_behind "tidegate_webhook_behind" "Events of the partitions of this node that endpoints have not taken, summed over the endpoints."
    gauge webhook_parked "tidegate_webhook_parked" "Conversations of these partitions that are sent apart because their next event keeps failing."
    gauge webhook_aside "tidegate_webhook_aside" "Events of these partitions that were set aside and are no longer sent."
    gauge webhook_missing "tidegate_webhook_missing" "Events that the feed no longer had when endpoints came to them, since this node delivers to them."
    gauge webhook_notices_aside "tidegate_webhook_notices_aside" "Notices that endpoints have not taken for too long, and that are no longer sent, since this node sends them."
    histogram webhook_lag "tidegate_webhook_lag_seconds" "Time from the acceptance of an entry of the feed to the answer with which an endpoint took its event, one for each event and delivery, replays included. Notices, events without a time, such as those of prunings, and what an operator sends again are left out."
    histogram webhook_times "tidegate_webhook_seconds" "Time of the requests of webhooks, failed ones included."
    counter webhook_requests "tidegate_webhook_requests_total" "Requests of webhooks."
    counter webhook_failures "tidegate_webhook_failures_total" "Requests of webhooks that were not answered with a status from 200 to 299."
    counter webhook_events "tidegate_webhook_events_total" "Events that endpoints have taken, repeated ones included."
    gauge message_topic_behind "tidegate_message_topic_behind" "Events of the partitions of this node that the topic of messages (kafka.message_topic) does not have."
    gauge message_topic_lag_seconds "tidegate_message_topic_lag_seconds" "Age of the oldest of these events that was read, to the millisecond; 0 without one."
    gauge message_topic_unreadable "tidegate_message_topic_partitions_unreadable" "Partitions of this node that are not published to the topic of messages, because their cursor is damaged or of a newer version."
    counter message_topic_events "tidegate_message_topic_events_total" "Events that the topic of messages has confirmed, repeated ones included."
    counter message_topic_failures "tidegate_message_topic_failures_total" "Requests to the topic of messages that were not confirmed; retried each second."
    counter message_topic_repeated "tidegate_message_topic_repeated_total" "Events of these requests that Kafka may have: they are published again. Those after a crash of a node are not counted."
    counter message_topic_missing "tidegate_message_topic_missing_total" "Numbers of the feed that were removed before the topic of messages had them; an event tidegate.feed.gap reports each range."
    gauge event_changes_behind "tidegate_event_changes_behind" "Entries of the feed of the partitions of this node that were not looked through for changes on the topic of events (kafka.event_changes)."
    gauge event_changes_unreadable "tidegate_event_changes_partitions_unreadable" "Partitions of this node whose changes are not published to the topic of events, because their cursor is damaged or of a newer version."
    counter event_changes "tidegate_event_changes_total" "Changes of groups and members that the topic of events has confirmed, repeated ones included."
    counter message_topic_oversized "tidegate_message_topic_oversized_total" "Events published without content or only with their number, or left out, because they exceeded max.message.bytes of the topic of messages."
    gauge breaker_redis "tidegate_breaker_redis_open" "Whether calls to Redis fail at once, because recent ones failed; one at a time tries again. 0: no, 1: yes."
    gauge breaker_redis_mirror "tidegate_breaker_redis_mirror_open" "The same for the mirror of storm windows in Redis."
    gauge breaker_redis_permits "tidegate_breaker_redis_permits_open" "The same for the permits of limits with scope = \"cluster\" in Redis."
    gauge breaker_postgres "tidegate_breaker_postgres_open" "The same for reads of clients in Postgres."
    gauge breaker_hook_login "tidegate_breaker_hook_login_open" "The same for the hook `login`."
    gauge breaker_hook_allow "tidegate_breaker_hook_allow_open" "The same for the hook `allow`."
    gauge breaker_hook_before "tidegate_breaker_hook_before_open" "The same for the hook `message.before`."
    gauge breaker_jwks "tidegate_breaker_jwks_open" "The same for the set of auth.jwks_url."
    counter jwks_refreshes "tidegate_jwks_refreshes_total" "Times the set of auth.jwks_url was loaded."
    counter jwks_failures "tidegate_jwks_failures_total" "Times the set of auth.jwks_url could not be loaded: unavailable, slow, too large or no set; the last good one stays in force."
    gauge jwks_keys "tidegate_jwks_keys" "Keys that verify tokens, as of the last refresh of auth.jwks_url; 0 without it."
    counter frames_in "tidegate_frames_in_total" "Frames read from clients."
    counter frames_bad "tidegate_frames_malformed_total" "Frames that could not be decoded; each closes its connection."
    counter sends "tidegate_sends_total" "Messages handed to the log or to a room."
    counter accepts "tidegate_accepts_total" "Messages that got a seq."
    counter duplicates "tidegate_duplicates_total" "Sends answered with an earlier seq."
    counter refusals "tidegate_send_refusals_total" "Sends refused."
    counter rate_limited "tidegate_rate_limited_total" "Requests refused with RATE_LIMITED: logins, joins, reads and sends over a limit of `limits` or of a rule."
    counter rate_hits_forgotten "tidegate_rate_hits_forgotten_total" "Hits that rate limits forgot because more keys than they hold were busy; so many hits were possibly admitted over a limit."
    counter limit_admitted_node "tidegate_limit_admitted_node_total" "Requests that rules of this node counted and admitted."
    counter limit_admitted_org "tidegate_limit_admitted_org_total" "Requests that rules of an organisation counted and admitted."
    counter limit_admitted_channel "tidegate_limit_admitted_channel_total" "Requests that rules of a channel counted and admitted."
    counter limit_admitted_user "tidegate_limit_admitted_user_total" "Requests that rules of a user counted and admitted."
    counter limit_admitted_device "tidegate_limit_admitted_device_total" "Requests that rules of a device counted and admitted."
    counter limit_admitted_conversation "tidegate_limit_admitted_conversation_total" "Requests that rules of a conversation counted and admitted."
    counter limit_admitted_address "tidegate_limit_admitted_address_total" "Requests that rules of an address counted and admitted."
    counter limit_admitted_content "tidegate_limit_admitted_content_total" "Requests that rules of a repeated text counted and admitted."
    counter limit_admitted_key "tidegate_limit_admitted_key_total" "Requests that rules of a key of the admin port counted and admitted."
    counter limit_refused_node "tidegate_limit_refused_node_total" "Requests refused by a rule of this node, which had the longest wait of those that refused it."
    counter limit_refused_org "tidegate_limit_refused_org_total" "Requests refused by a rule of an organisation, which had the longest wait of those that refused it."
    counter limit_refused_channel "tidegate_limit_refused_channel_total" "Requests refused by a rule of a channel, which had the longest wait of those that refused it."
    counter limit_refused_user "tidegate_limit_refused_user_total" "Requests refused by a rule of a user, which had the longest wait of those that refused it."
    counter limit_refused_device "tidegate_limit_refused_device_total" "Requests refused by a rule of a device, which had the longest wait of those that refused it."
    counter limit_refused_conversation "tidegate_limit_refused_conversation_total" "Requests refused by a rule of a conversation, which had the longest wait of those that refused it."
    counter limit_refused_address "tidegate_limit_refused_address_total" "Requests refused by a rule of an address, which had the longest wait of those that refused it."
    counter limit_refused_content "tidegate_limit_refused_content_total" "Requests refused by a rule of a repeated text, which had the longest wait of those that refused it."
    counter limit_refused_key "tidegate_limit_refused_key_total" "Requests refused by a rule of a key of the admin port, which had the longest wait of those that refused it."
    counter limit_delayed_node "tidegate_limit_delayed_node_total" "Messages that waited for a rule of this node instead of being refused."
    counter limit_delayed_org "tidegate_limit_delayed_org_total" "Messages that waited for a rule of an organisation instead of being refused."
    counter limit_delayed_channel "tidegate_limit_delayed_channel_total" "Messages that waited for a rule of a channel instead of being refused."
    counter limit_delayed_user "tidegate_limit_delayed_user_total" "Messages that waited for a rule of a user instead of being refused."
    counter limit_delayed_device "tidegate_limit_delayed_device_total" "Messages that waited for a rule of a device instead of being refused."
    counter limit_delayed_conversation "tidegate_limit_delayed_conversation_total" "Messages that waited for a rule of a conversation instead of being refused."
    counter limit_delayed_address "tidegate_limit_delayed_address_total" "Messages that waited for a rule of an address instead of being refused."
    counter limit_delayed_content "tidegate_limit_delayed_content_total" "Messages that waited for a rule of a repeated text instead of being refused."
    counter limit_delayed_key "tidegate_limit_delayed_key_total" "Messages that waited for a rule of a key of the admin port instead of being refused."
    counter limit_dry_refused "tidegate_limit_dry_refused_total" "Requests admitted although a rule with dry_run would have refused them, once for each such rule."
    counter limit_asks "tidegate_limit_asks_total" "Asks to Redis for permits of rules with scope = \"cluster\", one for each subject."
    counter limit_asks_failed "tidegate_limit_asks_failed_total" "Asks for permits that Redis did not answer; this node's share of the limit decides then."
    counter limit_by_share "tidegate_limit_by_share_total" "Requests admitted by this node's share of a limit with scope = \"cluster\", because Redis did not answer in time."
    gauge limit_shares "tidegate_limit_shares" "1 while this node decides by its share of each limit with scope = \"cluster\", because Redis is unavailable; 0 otherwise."
    counter blocked "tidegate_blocked_total" "Direct messages and signals refused with FORBIDDEN because their recipient blocks the sender."
    counter block_lookups "tidegate_block_lookups_total" "Lookups in the store whether a recipient blocks a sender; other sends need none."
    counter block_lookups_failed "tidegate_block_lookups_failed_total" "Lookups of blocks that the store did not answer; their messages were refused with STORE_UNAVAILABLE."
    histogram send_times "tidegate_send_seconds" "Time from a message to its ack, of a sample of the accepted messages: of all while at most 256 are unanswered."
    counter unknowns "tidegate_sends_unknown_total" "Sends whose reply came too late."
    histogram push_times "tidegate_push_ack_seconds" "Time from a push to the ack of the client, one for each ack, of direct and small-group pushes that were not sent again."
    counter pushes "tidegate_pushes_total" "Pushes written or queued, one per receiver."
    counter retransmits "tidegate_retransmits_total" "Pushes sent again because no ack came."
    counter behind "tidegate_behind_total" "Conversations whose pushes were replaced by a Behind hint, because an outbox or mailbox was full."
    counter room_left_out "tidegate_room_left_out_total" "Messages to live rooms that were left out (LEFT_OUT) because their room is over its rate; receivers are not counted."
    counter room_reactions "tidegate_room_reactions_total" "Reactions to live rooms that were counted."
    counter room_reactions_refused "tidegate_room_reactions_refused_total" "Reactions to live rooms that were refused: kind not listed or one too many, or too many rooms with reactions on this node."
    counter room_tallies_lost "tidegate_room_tallies_lost_total" "Members and reactions of rooms that were lost on their way to another node; they are repeated within 10 s, except for the last ones of a room without members on this node."
    counter room_tallies_refused "tidegate_room_tallies_refused_total" "Numbers of reactions of other nodes that this node does not count: kind not listed or one too many, or too many nodes or rooms. They count again with each repeat."
    counter room_shed_prio0 "tidegate_room_shed_prio0_total" "Room frames of senders with priority 0 that were dropped, one per receiver or node."
    counter room_shed_prio1 "tidegate_room_shed_prio1_total" "Room frames of senders with priority 1 that were dropped, one per receiver or node."
    counter room_shed_prio2 "tidegate_room_shed_prio2_total" "Room frames of senders with priority 2 that were dropped, one per receiver or node."
    counter room_shed_prio3 "tidegate_room_shed_prio3_total" "Room frames of senders with priority 3 that were dropped, one per receiver or node."
    counter shed "tidegate_shed_total" "Room frames dropped: outbox or mailbox full, or lost on the way to another node."
    counter signals "tidegate_signals_total" "Volatile frames written, one per receiver."
    counter signals_dropped "tidegate_signals_dropped_total" "Volatile frames and reactions dropped: sender over its rate, overload, receiver busy, or lost on the way to another node."
    gauge presence_watches "tidegate_presence_watches" "Watches of who of a conversation is online, of all connections."
    gauge presence_users "tidegate_presence_users" "Distinct users of watched conversations."
    counter presence_lookups "tidegate_presence_lookups_total" "Users of watched conversations looked up in the routes."
    counter presence_lookups_failed "tidegate_presence_lookups_failed_total" "Lookups of such users, of at most 1,000 each, that failed or may lack routes which a node re-asserts; nothing is reported until one succeeds."
    counter presence_dropped "tidegate_presence_reports_dropped_total" "Reports of who is online that a busy connection or shard did not take; its next one is complete."
    histogram presence_rounds "tidegate_presence_round_seconds" "Time of a round of reads, lookups and reports for watched conversations; the next one begins 1 s later."
    counter order_blocked "tidegate_order_blocked_total" "Chains that waited too long for their next id."
    counter order_skipped "tidegate_order_skipped_total" "Ids that a chain stopped waiting for and skipped."
    counter expired "tidegate_rows_expired_total" "Rows of history removed by retention."
    counter feed_entries "tidegate_feed_entries_total" "Entries of the feed that the owners of this node have archived: messages, changes of groups, recalls and prunings."
    gauge event_streams "tidegate_event_streams" "Open streams of GET /v1/events/stream on this node."
    counter stream_events "tidegate_event_stream_events_total" "Events sent by GET /v1/events/stream."
    counter stream_gaps "tidegate_event_stream_gaps_total" "Gaps reported by GET /v1/events/stream: the feed no longer had what a client had not read."
    gauge event_stream_lag "tidegate_event_stream_lag" "Entries of the feed that the stream of this node which is furthest behind has not read."
    counter feed_batches_removed "tidegate_feed_batches_removed_total" "Batches of the feed removed because of their age or of events.feed_bytes_max. A consumer that has not read them learns which entries it has missed."
    counter peer_answers_lost "tidegate_peer_answers_lost_total" "Replies that another node did not accept; their clients get UNKNOWN and retry."
    counter answers_recovered "tidegate_answers_recovered_total" "Replies that were missing and that the owner repeated on request."
    counter given_up "tidegate_partitions_given_up_total" "Times this node left the owners group because its archive stalled while others progressed."
    counter peer_pushes_lost "tidegate_peer_pushes_lost_total" "Pushes that another node did not accept, one per receiver; their clients pull."
    counter peer_marks_lost "tidegate_peer_marks_lost_total" "Read marks, cleared histories and hidden entries that did not reach another node; its clients get them at their next sync."
    counter fan_outs "tidegate_fan_outs_total" "Large-group records appended to node topics, one per node."
    counter fan_outs_beside "tidegate_fan_outs_beside_total" "Large-group records sent over the link because the node topic did not accept them."
    counter fan_outs_lost "tidegate_fan_outs_lost_total" "Large-group records that did not reach a node, or exceeded its capacity; its members there get Behind."
    counter fan_outs_idle "tidegate_fan_outs_idle_total" "Large-group records received from other nodes although this node has no member of the group."
    counter indexes_read "tidegate_group_indexes_read_total" "Times this node's index of a large group was older than a push and was updated from the store."
    gauge node_topic_lag "tidegate_node_topic_lag_records" "Records of this node's topic that are not processed yet, as of the last second in which Kafka reported the end of the topic; 0 without Kafka."
    gauge node_topic_lag_seconds "tidegate_node_topic_lag_seconds" "Age of the oldest node-topic record that is read but not processed."
    counter node_topic_gaps "tidegate_node_topic_gaps_total" "Gaps in this node's topic; members of large groups on this node get Behind."
    counter quarantined "tidegate_records_quarantined_total" "Log records that could not be decoded."
    counter accept_pauses "tidegate_accept_pauses_total" "Times accepting paused because file descriptors ran out."
    counter memory_checks "tidegate_memory_checks_total" "Times memory was measured and admission adjusted to it."
    gauge drain_phase "tidegate_drain_phase" "Phase of the drain: 0 ready, 1 cordoned, 2 noticing, 3 draining, 4 flushing."
    counter drain_cut "tidegate_drain_cut_total" "Connections cut at the drain's deadline."
    gauge kafka_queue "tidegate_kafka_append_queue_bytes" "Appended bytes that Kafka has not confirmed; like all of these, 0 without Kafka."
    gauge kafka_rtt "tidegate_kafka_rtt_seconds" "Round-trip time of the slowest broker, 99th percentile of the last second."
    gauge kafka_lag "tidegate_kafka_lag_records" "Records of the owned partitions that are not read yet."
    gauge kafka_read_ahead "tidegate_kafka_read_ahead_bytes" "Bytes of records that are read and wait for the ledger."
    counter kafka_errors "tidegate_kafka_errors_total" "Errors reported by the Kafka client, such as an unavailable broker."
    counter kafka_unknowns "tidegate_kafka_appends_unknown_total" "Appends that Kafka did not confirm in time."
    gauge link_peers "tidegate_link_peers" "Peers that this node has a link to."
    counter link_calls "tidegate_link_calls_total" "Batches handed to the link for a peer: replies, pushes, queries."
    counter link_frames "tidegate_link_frames_total" "Frames sent to peers; each carries all batches that waited."
    counter link_full "tidegate_link_full_total" "Batches refused because the queue to their peer was full; their pushes are not delivered."
    counter link_timeouts "tidegate_link_timeouts_total" "Batches without a timely reply from their peer; their pushes count as not delivered."
    counter link_failures "tidegate_link_failures_total" "Links to peers that broke or could not be opened."
    counter link_refused "tidegate_link_refused_total" "Link callers refused in the handshake: wrong secret or certificate, another run, too slow, too many connections, or not authenticated in time."
    counter figures_dropped "tidegate_peer_figures_dropped_total" "Answers with figures of a peer that were dropped, because they exceeded its allowance of 64 KiB a second; the console lacks them."
    gauge partitions_owned "tidegate_partitions_owned" "Partitions of the log that this node owns."
    counter rules_switched "tidegate_ledger_rules_switched_total" "Times the rules of an owned partition were switched to a later version."
    gauge clock_distrusted "tidegate_clock_distrusted" "Whether messages and dedup keys do not expire, because the clock of this node differs from that of the store, or was set. 0: no, 1: yes."
    gauge rules_unknown "tidegate_ledger_rules_unknown" "Version of the ledger's rules that this node met and does not know; it owns no partitions until it is replaced. 0: none."
    gauge archive_lag "tidegate_archive_lag_records" "Records of the owned partitions that are not archived yet."
    gauge archive_lag_seconds "tidegate_archive_lag_seconds" "Age of the oldest unarchived record, in the owned partition with the largest lag."
    gauge archive_behind "tidegate_archive_behind_partitions" "Partitions whose sends this node refuses with ARCHIVE_BEHIND: their archive lags by half of what the log keeps."
    gauge nodes_live "tidegate_nodes_live" "Nodes with a live lease, this one included, as this node last saw them."
    counter lease_failures "tidegate_lease_failures_total" "Renewals of the node's lease that the routes did not answer."
    counter routes_lost "tidegate_routes_lost_total" "Times the routes came back or had lost data, so that this node re-asserted its own."
    counter routes_reasserted "tidegate_routes_reasserted_total" "Routes of this node's connections that were re-asserted."
    counter rows_reaped "tidegate_routes_reaped_total" "Routes of dead nodes that this node removed."
    counter events "tidegate_events_total" "Events recorded: online, offline, read markers, blocked chains, audit, storms."
    counter events_lost "tidegate_events_lost_total" "Events dropped: queue full, or permanently rejected by Kafka. Departures are still published when the node drains or is reaped."
    counter events_retried "tidegate_events_retried_total" "Retries of events that Kafka did not confirm."
    gauge events_waiting "tidegate_events_waiting_bytes" "Events that wait to be published, in bytes."
    gauge admin_keys "tidegate_admin_keys" "Keys in the file of the admin port as this node last read it, revoked and expired ones included."
    gauge admin_keys_broken "tidegate_admin_keys_broken" "Whether the file of keys can't be used now, so that those read before stay in force. 0: no, 1: yes."
    counter admin_keys_missing "tidegate_admin_keys_missing_total" "Requests to the admin port refused because they had no key (KEY_INVALID)."
    counter admin_keys_refused "tidegate_admin_keys_refused_total" "Requests to the admin port refused because of their key: unknown, malformed, revoked, expired, or from a foreign network (KEY_INVALID); also those beyond the limit of an address (RATE_LIMITED)."
    counter admin_scopes_missing "tidegate_admin_scopes_missing_total" "Requests to the admin port refused because their key has not the scope (SCOPE_MISSING)."
    counter api_messages_accepted "tidegate_api_messages_accepted_total" "Messages of the admin API that got a seq, or were published to a live room."
    counter api_messages_duplicate "tidegate_api_messages_duplicate_total" "Messages of the admin API answered with an earlier seq."
    counter api_messages_refused "tidegate_api_messages_refused_total" "Messages of the admin API refused, for now or permanently."
    counter api_messages_unknown "tidegate_api_messages_unknown_total" "Messages of the admin API without an answer of the log in time (UNKNOWN)."
    counter audit_lines "tidegate_audit_lines_total" "Lines written to the audit file."
    counter audit_failures "tidegate_audit_failures_total" "Lines that could not be written to the audit file; the log has them."
    counter audit_refusals "tidegate_audit_refusals_total" "Changes by the admin API refused because they could not be recorded (AUDIT_UNAVAILABLE)."
    gauge storms "tidegate_storms" "Groups of the owned partitions with a message storm: more than storm.threshold messages within storm.window_ms."
    counter storms_total "tidegate_storms_total" "Message storms that started."
    counter storm_watches_forgotten "tidegate_storm_watches_forgotten_total" "Groups that the detection of storms forgot because their number exceeds storm.memory_bytes; a storm of such a group may be found late."
    counter storm_notices_dropped "tidegate_storm_notices_dropped_total" "Notices of storms dropped on their way to a node or shard: queue or mailbox full."
    counter storm_steps_failed "tidegate_storm_steps_failed_total" "Actions on storms that failed and are tried again: entries of storms in force, and changes of group settings."
    gauge storm_watches_bytes "tidegate_storm_watches_bytes" "Estimated memory of the groups that are watched for storms."
    counter storm_mirror_skipped "tidegate_storm_mirror_skipped_total" "Messages of groups that are missing in the mirror of storm windows in Redis: above its bounds, or Redis was late or unavailable."
    gauge shard_lag "tidegate_shard_loop_lag_seconds" "Longest time in the last second that a ready connection waited for its visit, of all shards: the turn of the shard during which it became ready, and those after it without a visit."
    gauge shard_busy "tidegate_shard_busy_ratio" "Part of the time that the busiest shard's thread spent in turns and not in its poll, over 250 ms."
    gauge load_level "tidegate_load_level" "Load level of this node. With overload.gates, from 1 signals are dropped; from 2 joins, from 3 pulls and syncs and from 4 new logins are refused. 0: nothing is."
    gauge load_pressure "tidegate_load_pressure" "Largest signal of load in parts of its target: busy shards, their lag, memory, or the lag of the archive."
    gauge load_factor "tidegate_load_factor" "Load factor of this node, by which the limits of rules with `dynamic` are multiplied: 0.1 to 1.2, and 1 while the node is not loaded."
    gauge rules_lowered "tidegate_limit_rules_lowered" "Rules with `dynamic` whose limit is now below the one that is written, because of the load of this node."
    gauge limit_histories "tidegate_limit_histories" "Subjects of rules with `dynamic` whose use this node learns by the hour of the week, at most 256."
    counter limit_history_errors "tidegate_limit_history_errors_total" "Failed attempts to read or store what subjects of rules with `dynamic` usually use; they are repeated each minute."
    gauge overload_wait "tidegate_overload_wait_seconds" "Time that clients refused because of overload are asked to wait, the longest of all shards."
    gauge gate_sends_limit "tidegate_gate_sends_limit" "Unanswered messages that the gates of all shards admit."
    gauge gate_sends_in_flight "tidegate_gate_sends_in_flight" "Unanswered messages of this node's connections."
    counter gate_sends_refused "tidegate_gate_sends_refused_total" "Messages refused with BUSY because the node is overloaded."
    gauge gate_logins_limit "tidegate_gate_logins_limit" "Logins in progress that the gates of all shards admit."
    gauge gate_logins_in_flight "tidegate_gate_logins_in_flight" "Logins in progress."
    counter gate_logins_refused "tidegate_gate_logins_refused_total" "Logins refused with OVERLOADED because the node is overloaded."
    gauge gate_reads_limit "tidegate_gate_reads_limit" "Pulls and syncs in progress that the gates of all shards admit."
    gauge gate_reads_in_flight "tidegate_gate_reads_in_flight" "Pulls and syncs in progress."
    counter gate_reads_refused "tidegate_gate_reads_refused_total" "Pulls, syncs and joins refused with BUSY because the node is overloaded."
    gauge memory_used "tidegate_memory_used_bytes" "Resident memory plus kernel socket memory."
    gauge memory_limit "tidegate_memory_limit_bytes" "Memory budget of admission."
    gauge ledger_cache "tidegate_ledger_cache_bytes" "Estimated memory of the rows that the owners of the node's partitions cache."
}

/// Shared pointer to all handles; each component that counts has a clone.
#[derive(Clone)]
pub struct Metrics(Arc<Handles>);

impl Deref for Metrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

impl Metrics {
    /// Counts dropped room frames of senders with a class, 0 to 3.
    pub fn count_shed(&self, class: u8, count: u64) {
        self.shed.increment(count);
        let of_class = match class {
            0 => &self.room_shed_prio0,
            1 => &self.room_shed_prio1,
            2 => &self.room_shed_prio2,
            _ => &self.room_shed_prio3,
        };
        of_class.increment(count);
    }
}

/// Renderer of `/metrics`.
#[derive(Clone)]
pub struct MetricsPage {
    recorder: PrometheusHandle,
    metrics: Metrics,
}

impl MetricsPage {
    /// Returns all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut page = self.recorder.render();
        self.metrics.render(&mut page);
        page.push_str(&build_info());
        page
    }
}

/// Renders the version of the node. This is the one metric with labels (ADR 34).
fn build_info() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let rules = tidegate_protocol::machine::ledger::LEDGER_NEWEST;
    format!(
        "# HELP {BUILD_INFO} Version of the program, and the newest rules of the ledger that it knows; always 1.\n\
         # TYPE {BUILD_INFO} gauge\n{BUILD_INFO}{{version=\"{version}\",rules=\"{rules}\"}} 1\n"
    )
}

/// Metric with the version as its labels.
const BUILD_INFO: &str = "tidegate_build_info";

/// Installs the recorder of this process and creates the handles; a second node in the process shares the recorder.
pub fn install() -> (Metrics, MetricsPage) {
    static RECORDER: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    let handle = RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is already installed; /metrics stays empty");
        }
        handle
    });
    let metrics = Metrics::describe();
    (metrics.clone(), MetricsPage { recorder: handle.clone(), metrics })
}
