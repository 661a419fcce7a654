//! One request to an HTTP port of a node, as the commands send it.

use std::net::SocketAddr;

use tidegate::cli::admin::Admin;

use super::PATIENCE;

/// Asks with a JSON body; the status and the body of the answer.
pub fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut port = Admin::connect_within(admin, PATIENCE).expect("an admin port");
    port.request(method, path, body).expect("the admin port answers")
}
