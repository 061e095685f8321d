//! Selects the proxy of a connection: pure. `HTTPS_PROXY` names it, and `NO_PROXY` the exceptions,
//! as in curl and Go.
//!
//! The proxy client of hyper-util (0.1.21) does not fit:
//!
//! - A refusal loses its status: 407 has a name, every other one is `TunnelUnsuccessful`. A person who has to open a
//!   firewall needs the status and the words of the proxy. Another 2xx than 200 also counts as a refusal.
//! - `Matcher::intercept` passes only the host to `NO_PROXY`, so an entry with a port never matches.
//! - An entry `*.example.com` is compared as text and matches nothing.
//! - A malformed `HTTPS_PROXY` becomes `None`: the agent would connect directly without a word.
use std::fmt;
use std::net::IpAddr;

use data_encoding::BASE64;
use http::Uri;

/// The reason why the proxy cannot be used. The address is not quoted: it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The value is not an address.
    #[error("HTTPS_PROXY is not an address: write http://host:port")]
    Address,
    /// An unsupported scheme.
    #[error(
        "HTTPS_PROXY must begin with http://: the encrypted connection to the hub is tunneled through it by CONNECT"
    )]
    Scheme,
}

/// An HTTP proxy with CONNECT tunnels.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The address, as `host:port`.
    pub address: String,
    /// The value of `Proxy-Authorization`, which is a secret.
    authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Proxy({})", self.address)
    }
}

impl Proxy {
    /// Parses `http://[user:password@]host[:port]`; the default scheme is `http`.
    ///
    /// # Errors
    /// [`ProxyError`], which does not quote the text.
    pub fn parse(text: &str) -> Result<Self, ProxyError> {
        let text = text.trim();
        let with_scheme = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let uri: Uri = with_scheme.parse().map_err(|_| ProxyError::Address)?;
        if uri.scheme_str() != Some("http") {
            return Err(ProxyError::Scheme);
        }
        let authority = uri.authority().ok_or(ProxyError::Address)?;
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user);
        let host = authority.host();
        if host.is_empty() {
            return Err(ProxyError::Address);
        }
        let authorization = user.map(|user| {
            // A name alone has an empty password.
            let user = if user.contains(':') {
                user.to_owned()
            } else {
                format!("{user}:")
            };
            format!("Basic {}", BASE64.encode(&unescaped(&user)))
        });
        Ok(Self {
            address: format!("{host}:{}", authority.port_u16().unwrap_or(80)),
            authorization,
        })
    }

    /// Returns the request for a tunnel to `host:port`.
    pub fn connect_request(&self, target: &str) -> String {
        let authorization = self.authorization.as_deref();
        let authorization = authorization
            .map(|value| format!("Proxy-Authorization: {value}\r\n"))
            .unwrap_or_default();
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n")
    }
}

/// Decodes percent-escapes.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escape = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match escape
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .filter(|_| first == b'%')
        {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// The answer to a CONNECT: its status and its text.
pub fn answer(head: &str) -> Option<(u16, &str)> {
    let line = head.lines().next()?;
    let (version, rest) = line.split_once(' ')?;
    let (code, words) = rest.split_once(' ').unwrap_or((rest, ""));
    version
        .starts_with("HTTP/1.")
        .then_some((code.parse().ok()?, words.trim()))
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// Everything.
    All,
    /// A name with all subdomains (`example.com`), or only its subdomains (`.example.com`,
    /// `*.example.com`); with or without a port.
    Name {
        name: String,
        below_only: bool,
        port: Option<u16>,
    },
    /// One address, with or without a port.
    Address(IpAddr, Option<u16>),
    /// A network.
    Network(IpAddr, u8),
}

/// The proxy of the environment and its exceptions.
#[derive(Clone, Debug, Default)]
pub struct Route {
    proxy: Option<Proxy>,
    around: Vec<Entry>,
}

impl Route {
    /// Straight to the hub.
    pub fn direct() -> Self {
        Self::default()
    }

    /// Reads the values of `HTTPS_PROXY` and `NO_PROXY`.
    ///
    /// # Errors
    /// [`ProxyError`], which does not quote the text.
    pub fn new(proxy: &str, no_proxy: &str) -> Result<Self, ProxyError> {
        let proxy = (!proxy.trim().is_empty())
            .then(|| Proxy::parse(proxy))
            .transpose()?;
        let entries = no_proxy
            .split([',', ' '])
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        Ok(Self {
            proxy,
            around: entries.map(entry).collect(),
        })
    }

    /// Returns the proxy for `host:port`, if there is one.
    pub fn proxy_for(&self, address: &str) -> Option<&Proxy> {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .trim_end_matches('.')
            .to_ascii_lowercase();
        let port = port.parse().ok();
        let proxy = self.proxy.as_ref()?;
        (!self.around.iter().any(|entry| entry.matches(&host, port))).then_some(proxy)
    }
}

fn entry(text: &str) -> Entry {
    if text == "*" {
        return Entry::All;
    }
    if let Some((network, bits)) = text.split_once('/')
        && let (Ok(network), Ok(bits)) = (network.parse(), bits.parse())
    {
        return Entry::Network(network, bits);
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Entry::Address(address, None);
    }
    let (host, port) = match text
        .rsplit_once(':')
        .map(|(host, port)| (host, port.parse()))
    {
        Some((host, Ok(port))) => (host, Some(port)),
        _ => (text, None),
    };
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return Entry::Address(address, port);
    }
    let below = host.strip_prefix("*.").or_else(|| host.strip_prefix('.'));
    let name = below
        .unwrap_or(host)
        .trim_end_matches('.')
        .to_ascii_lowercase();
    Entry::Name {
        name,
        below_only: below.is_some(),
        port,
    }
}

impl Entry {
    fn matches(&self, host: &str, port: Option<u16>) -> bool {
        let same_port = |wanted: &Option<u16>| wanted.is_none() || *wanted == port;
        let address: Option<IpAddr> = host.parse().ok();
        match self {
            Self::All => true,
            Self::Name {
                name,
                below_only,
                port,
            } => {
                let below = host
                    .strip_suffix(name.as_str())
                    .is_some_and(|rest| rest.ends_with('.'));
                same_port(port) && (below || (!below_only && host == name))
            }
            Self::Address(known, port) => same_port(port) && address == Some(*known),
            Self::Network(network, bits) => {
                address.is_some_and(|address| is_in_network(address, *network, *bits))
            }
        }
    }
}

/// Whether an address lies in a network.
fn is_in_network(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let prefix = |address: u128, width: u32| {
        address
            .checked_shr(width.saturating_sub(u32::from(bits)))
            .unwrap_or(0)
    };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            prefix(u32::from(address).into(), 32) == prefix(u32::from(network).into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            prefix(address.into(), 128) == prefix(network.into(), 128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_and_its_password_is_never_shown() {
        let proxy = Proxy::parse("http://me:s%40cret%3A@proxy.example.com:3128").unwrap();
        assert_eq!(proxy.address, "proxy.example.com:3128");
        let request = proxy.connect_request("hub:8443");
        let authorization = format!(
            "Proxy-Authorization: Basic {}\r\n",
            BASE64.encode(b"me:s@cret:")
        );
        assert_eq!(
            request,
            format!("CONNECT hub:8443 HTTP/1.1\r\nHost: hub:8443\r\n{authorization}\r\n")
        );
        assert_eq!(format!("{proxy:?}"), "Proxy(proxy.example.com:3128)");

        assert_eq!(
            Proxy::parse("proxy").map(|proxy| proxy.address),
            Ok("proxy:80".to_owned())
        );
        assert_eq!(
            Proxy::parse("[::1]:3128").map(|proxy| proxy.address),
            Ok("[::1]:3128".to_owned())
        );
        assert!(
            !Proxy::parse("proxy:1")
                .unwrap()
                .connect_request("hub:1")
                .contains("Authorization")
        );
        assert_eq!(Proxy::parse("socks5://proxy:1"), Err(ProxyError::Scheme));
        for wrong in ["http://", "http://a b", "http://me:s€cret@"] {
            let error = Proxy::parse(wrong).unwrap_err();
            assert!(!error.to_string().contains("cret"), "{error}");
        }
    }

    #[test]
    fn no_proxy_hosts_bypass_the_proxy() {
        let cases = [
            ("hub.example.com", "hub.example.com:8443", true),
            ("example.com", "hub.example.com:8443", true),
            ("example.com", "example.com:8443", true),
            ("EXAMPLE.com", "hub.Example.COM:8443", true),
            ("example.com", "badexample.com:8443", false),
            (".example.com", "hub.example.com:8443", true),
            (".example.com", "example.com:8443", false),
            ("*.example.com", "hub.example.com:8443", true),
            ("hub.example.com:8443", "hub.example.com:8443", true),
            ("hub.example.com:443", "hub.example.com:8443", false),
            ("10.0.0.0/8", "10.2.3.4:8443", true),
            ("10.0.0.0/8", "11.2.3.4:8443", false),
            ("0.0.0.0/0", "11.2.3.4:8443", true),
            ("fd00::/8", "[fd12::1]:8443", true),
            ("fd00::/8", "[fe80::1]:8443", false),
            ("10.2.3.4", "10.2.3.4:8443", true),
            ("10.2.3.4:443", "10.2.3.4:8443", false),
            ("::1", "[::1]:8443", true),
            ("10.0.0.0/8", "hub.example.com:8443", false),
            ("*", "anything:1", true),
            ("a, b ,example.com", "hub.example.com:1", true),
            ("", "hub:1", false),
        ];
        for (no_proxy, address, around) in cases {
            let route = Route::new("http://proxy:3128", no_proxy).unwrap();
            assert_eq!(
                route.proxy_for(address).is_none(),
                around,
                "{no_proxy:?} and {address}"
            );
        }
        assert!(Route::new("", "").unwrap().proxy_for("hub:1").is_none());
    }

    #[test]
    fn proxy_answer_has_a_status_and_a_text() {
        assert_eq!(
            answer("HTTP/1.1 200 Connection established\r\n\r\n"),
            Some((200, "Connection established"))
        );
        assert_eq!(answer("HTTP/1.0 407\r\n\r\n"), Some((407, "")));
        assert_eq!(answer("SSH-2.0-OpenSSH"), None);
    }
}
