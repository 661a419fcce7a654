//! Delivery of the feed to endpoints of the application, by the owners of partitions.
//!
//! Order, retries and cursors are decided by [`tidegate_protocol::machine::webhook`]; this module reads the feed, reads what
//! each event is about when it is sent, and saves cursors under the fence of the partition's owner. Nothing here delays an
//! owner: deliveries read the store, and owners only note that they have archived.

mod content;
mod deliverer;
mod event;
mod filter;

pub(crate) use self::{
    content::read as read_entries,
    event::{EventEncoder, Found as FoundEntry},
};
pub use self::{
    deliverer::{
        DelivererSettings, FEED_REQUESTS_MAX, OwnedFeed, OwnedFeeds, WebhookDeliverer, WebhookReceiver,
        WebhookStart, WebhookStatus,
    },
    filter::{InvalidFilter, WebhookFilter},
};
