//! Files of the console, compressed in the program; clients that don't take gzip get them as they were.

use std::io::Read as _;

use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse as _, Response},
};
use flate2::read::GzDecoder;

/// File in the program.
struct EmbeddedFile {
    name: &'static str,
    kind: &'static str,
    gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// Returns the page, which no cache may keep: a node of another version has another one.
pub(super) fn index(request: &HeaderMap) -> Response {
    respond(&INDEX, "no-store", request)
}

/// Returns a file that the page loads, or `None`. Its name changes with its content, so caches may keep it.
pub(super) fn asset(name: &str, request: &HeaderMap) -> Option<Response> {
    let at = ASSETS.binary_search_by(|file| file.name.cmp(name)).ok()?;
    Some(respond(&ASSETS[at], "public, max-age=31536000, immutable", request))
}

fn respond(file: &EmbeddedFile, cache: &'static str, request: &HeaderMap) -> Response {
    let fields = |encoding: Option<(HeaderName, &'static str)>| {
        let fixed = [(CONTENT_TYPE, file.kind), (CACHE_CONTROL, cache), (VARY, "accept-encoding")];
        let fields = fixed.into_iter().chain(encoding);
        fields.map(|(name, value)| (name, HeaderValue::from_static(value))).collect::<HeaderMap>()
    };
    if accepts_gzip(request) {
        return (fields(Some((CONTENT_ENCODING, "gzip"))), Body::from(file.gzip)).into_response();
    }
    let mut plain = Vec::new();
    match GzDecoder::new(file.gzip).read_to_end(&mut plain) {
        Ok(_) => (fields(None), Body::from(plain)).into_response(),
        // Only a build that wrote wrong files gets here.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns whether the client takes gzip: it is listed, or `*` is and gzip is not, with a weight above 0.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let (mut gzip, mut any) = (None, None);
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    for coding in values.flat_map(|value| value.split(',')) {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight =
            parameters.trim().strip_prefix("q=").map_or(Ok(1.0), |weight| weight.trim().parse::<f32>());
        let is_accepted = weight.is_ok_and(|weight| weight > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") => gzip = Some(is_accepted),
            "*" => any = Some(is_accepted),
            _ => {}
        }
    }
    gzip.or(any).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_only_to_clients_that_take_it() {
        let takes = |value: &str| {
            let mut request = HeaderMap::new();
            request.insert(ACCEPT_ENCODING, value.parse().unwrap());
            accepts_gzip(&request)
        };
        for value in ["gzip", "gzip, deflate, br", "br;q=1, GZIP;q=0.5", "*", "identity;q=0, *;q=0.1"] {
            assert!(takes(value), "{value}");
        }
        for value in ["", "br", "gzip;q=0", "gzip;q=0, *", "*;q=0", "identity", "gzip;q=x"] {
            assert!(!takes(value), "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn embedded_files_are_whole_and_sorted() {
        assert!(ASSETS.is_sorted_by(|a, b| a.name < b.name));
        for file in ASSETS.iter().chain([&INDEX]) {
            let mut plain = Vec::new();
            GzDecoder::new(file.gzip).read_to_end(&mut plain).unwrap();
            assert!(!plain.is_empty(), "{}", file.name);
        }
        assert!(asset("index.html", &HeaderMap::new()).is_none());
    }
}
