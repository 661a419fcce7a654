//! Cookies of a request that a login may use.

use std::fmt;

use httparse::Header;
use serde::{Serialize, Serializer};

use super::{Policy, RefusalReason};

/// Most bytes of the cookies that a login takes, names and values together.
pub const COOKIE_BYTES_MAX: usize = 4 * 1024;

/// Cookies that a browser sent for a login, by name. Their values are credentials.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Cookies(Vec<(Box<str>, Box<str>)>);

impl Cookies {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Returns names and values, in the order of the setting.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Creates cookies for tests.
    #[cfg(test)]
    pub(crate) fn of(cookies: &[(&str, &str)]) -> Self {
        Self(cookies.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }
}

/// Omits the values, which must not be logged.
impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Writes an object, for the question to the hook.
impl Serialize for Cookies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Returns the cookies that the policy names, of a request from a page whose origin is listed; none for other requests.
/// Browsers send cookies along with requests of any page, so that another site could log in as its visitor.
pub(super) fn read(
    headers: &[Header<'_>],
    origin: Option<&[u8]>,
    policy: &Policy,
) -> Result<Cookies, RefusalReason> {
    if !policy.takes_cookies_from(origin) {
        return Ok(Cookies::default());
    }
    let lines = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("cookie"));
    let pairs: Vec<(&[u8], &[u8])> = lines
        .flat_map(|header| header.value.split(|byte| *byte == b';'))
        .filter_map(name_and_value)
        .collect();
    let named = policy.cookies.iter().filter_map(|name| {
        // The first one, as RFC 6265 has the most specific path first.
        let (_, value) = pairs.iter().find(|(found, _)| *found == name.as_bytes())?;
        let value = std::str::from_utf8(value).ok()?;
        (!value.is_empty()).then(|| (name.as_str().into(), value.into()))
    });
    let cookies = Cookies(named.collect());
    match cookies.bytes() <= COOKIE_BYTES_MAX {
        true => Ok(cookies),
        false => Err(RefusalReason::Cookies),
    }
}

/// Splits a pair, and removes the white space of ASCII alone. A browser takes a name that begins with a Unicode space as
/// another name, so that any host of the domain may set such a cookie; without the space it would be a `__Host-` one.
fn name_and_value(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "https://chat.example.org";

    fn policy() -> Policy {
        let cookies = vec!["sid".to_owned(), "__Host-t".to_owned()];
        Policy { origins: vec![PAGE.to_owned()], cookies, admits_loopback: true, ..Policy::default() }
    }

    fn of(lines: &[&str], origin: Option<&str>) -> Result<Cookies, RefusalReason> {
        let headers: Vec<Header<'_>> =
            lines.iter().map(|line| Header { name: "COOKIE", value: line.as_bytes() }).collect();
        read(&headers, origin.map(str::as_bytes), &policy())
    }

    #[test]
    fn listed_cookies_of_a_listed_origin_are_taken() {
        let line = "a=1; sid=x=y ;theme=dark; sid=second; SID=upper; __Host-t=\"q\"";
        let taken = of(&[line], Some("HTTPS://Chat.example.org")).unwrap();
        assert_eq!(taken, Cookies::of(&[("sid", "x=y"), ("__Host-t", "\"q\"")]));
        assert_eq!(serde_json::to_string(&taken).unwrap(), r#"{"sid":"x=y","__Host-t":"\"q\""}"#);
        assert_eq!(format!("{taken:?}"), r#"["sid", "__Host-t"]"#);
        assert_eq!(of(&["a=1", "sid=z"], Some(PAGE)).unwrap(), Cookies::of(&[("sid", "z")]));
        for nothing in ["", "sid", "sid=", "sid= ;x", ";;=;", "xsid=1", "sid\t2=1"] {
            assert!(of(&[nothing], Some(PAGE)).unwrap().is_empty(), "{nothing}");
        }
    }

    #[test]
    fn name_after_a_unicode_space_is_another_name() {
        for space in ["\u{85}", "\u{a0}", "\u{2000}", "\u{3000}"] {
            let line = format!("{space}__Host-t=tossed; __Host-t{space}=tossed; __Host-t=own");
            assert_eq!(of(&[&line], Some(PAGE)).unwrap(), Cookies::of(&[("__Host-t", "own")]), "{space:?}");
        }
    }

    #[test]
    fn other_cookies_that_are_no_text_hide_none() {
        let header = Header { name: "Cookie", value: b"theme=\xfc; sid=x; __Host-t=\xa0" };
        let taken = read(&[header], Some(PAGE.as_bytes()), &policy()).unwrap();
        assert_eq!(taken, Cookies::of(&[("sid", "x")]));
    }

    #[test]
    fn other_origins_and_none_bring_no_cookies() {
        for origin in [None, Some("null"), Some("http://localhost:3000"), Some("https://evil.example")] {
            assert!(of(&["sid=x"], origin).unwrap().is_empty(), "{origin:?}");
        }
        let any = Policy { origins: vec!["*".to_owned()], ..policy() };
        let header = Header { name: "cookie", value: b"sid=x" };
        assert!(read(&[header], Some(b"*"), &any).unwrap().is_empty());
    }

    #[test]
    fn cookies_over_their_bound_are_refused_and_others_do_not_count() {
        let sid = |bytes: usize| format!("sid={}; other={}", "x".repeat(bytes), "y".repeat(9_000));
        assert!(of(&[&sid(COOKIE_BYTES_MAX - 3)], Some(PAGE)).is_ok());
        assert_eq!(of(&[&sid(COOKIE_BYTES_MAX - 2)], Some(PAGE)), Err(RefusalReason::Cookies));
        assert!(of(&[&sid(COOKIE_BYTES_MAX - 2)], None).is_ok());
    }
}
