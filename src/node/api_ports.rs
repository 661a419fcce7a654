//! Thread of the admin and the monitor port.

use std::{io, net::TcpListener, sync::Arc};

use crate::{
    api::{self, Api, http_server::ApiThread},
    net::tls::Certificates,
};

/// Listening socket of an API port, and its certificate if it speaks TLS.
pub(super) type ApiPort = (TcpListener, Option<Arc<Certificates>>);

/// Serves the admin port, and the port for probes if there is one, on a thread of their own.
pub(super) fn serve_apis(admin: ApiPort, monitor: Option<ApiPort>, api: Api) -> io::Result<ApiThread> {
    ApiThread::start(async move |stop| {
        let listen = |(listener, tls)| match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => Some((listener, tls)),
            Err(error) => {
                tracing::error!(%error, "API port can't be served");
                None
            }
        };
        let (admin, monitor) = (listen(admin), monitor.and_then(listen));
        let monitoring = async {
            if let Some((monitor, tls)) = monitor {
                api::http_server::monitor::serve(monitor, tls, api.clone(), stop.cancelled()).await;
            }
        };
        let administering = async {
            if let Some((admin, tls)) = admin {
                api::serve(admin, tls, api.clone(), stop.cancelled()).await;
            }
        };
        tokio::join!(monitoring, administering);
    })
}
