//! Delivery of the feed to endpoints of the application, by the owners of partitions.
//!
//! Order, retries and cursors are decided by [`tidegate_protocol::machine::webhook`]; this module reads the feed, reads what
//! each event is about when it is sent, and saves cursors under the fence of the partition's owner. Nothing here delays an
//! owner: deliveries read the store, and owners only note that they have archived. Endpoints are entries of the guard, so
//! all nodes have the same; [`Webhooks`] runs a deliverer for each of them. [`FeedTopic`] runs one more, whose receiver is
//! a topic.
//!
//! **Memory.** An endpoint holds at most [`tidegate_protocol::machine::webhook::WEBHOOK_EVENTS_MAX`] references to events,
//! about 1 MiB, on each node. A request has at most [`REQUEST_BYTES_MAX`] of content and the same of JSON, or one event. A
//! node has [`FEED_REQUESTS_MAX`] requests at a time.

mod consumer;
mod content;
mod deliverer;
mod endpoint;
mod event;
mod filter;
mod follower;
mod manager;
mod measured;
mod missing;
mod newest;
mod notice_status;
mod once;
mod permits;
mod plan;
mod progress;
mod read_times;
mod start;
mod topic;
mod waiting_form;

#[cfg(test)]
pub(crate) use self::deliverer::tests::world as delivery_world;
pub(crate) use self::{
    consumer::{CursorSave, FeedConsumer, FeedDriver, run as run_consumer},
    content::{Found as FoundEntry, read as read_entries},
    deliverer::body as request_body,
    event::{CloudEvent, EventEncoder, cloud_event, event_kind},
};
pub use self::{
    content::REQUEST_BYTES_MAX,
    deliverer::{WebhookDeliverer, WebhookStatus},
    endpoint::{
        BatchForm, ENDPOINT_ID_BYTES_MAX, ENDPOINTS_MAX, EndpointForm, EndpointSecret, ORDERS_MAX,
        SECRET_OVERLAP_MS, StartForm, StoredAction, StoredEndpoint, StoredOrder,
    },
    filter::{FILTER_USERS_MAX, InvalidFilter, WebhookFilter},
    follower::EndpointFollower,
    manager::{EndpointCompanion, EndpointView, WebhookPolicy, Webhooks},
    missing::{FeedGap, MissingCount},
    notice_status::NoticeStatus,
    once::{SEND_ONCE_MAX, send_once, send_test},
    permits::{FEED_REQUESTS_MAX, WebhookPermits},
    plan::{WaitingPlan, WebhookAction, WebhookOrder, WebhookPlan, WebhookReceiver, WebhookStart},
    progress::EndpointProgress,
    topic::FeedTopic,
    waiting_form::{WaitingForm, WaitingPreview, WaitingUnless},
};
