//! The end of access: tokens that expire, connections that are kicked, and tokens that are revoked, over real sockets
//! on one node and on several.

#![allow(clippy::unwrap_used)]

#[path = "ending/bans.rs"]
mod bans;
#[path = "ending/evidence.rs"]
mod evidence;
#[path = "ending/expiry.rs"]
mod expiry;
#[path = "ending/kick.rs"]
mod kick;
#[path = "support/mesh.rs"]
mod mesh;
#[path = "ending/priorities.rs"]
mod priorities;
#[path = "ending/revoke.rs"]
mod revoke;
#[path = "ending/rooms.rs"]
mod rooms;
#[path = "support/mod.rs"]
mod support;
#[path = "ending/suspensions.rs"]
mod suspensions;

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::Value;
use support::{Client, ServerBody};
use tidegate_protocol::pb;

/// Returns seconds since 1970, plus `later`.
fn now(later: i64) -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + later
}

/// Signs a token with these claims.
fn sign(key: &[u8], claims: &Value) -> String {
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(key)).unwrap()
}

/// Returns the Close frame, which is the last one.
fn close_of(client: &mut Client) -> pb::Close {
    let close = client.until_end().into_iter().rev().find_map(|frame| match frame.body {
        Some(ServerBody::Close(close)) => Some(close),
        _ => None,
    });
    close.expect("a close frame")
}
