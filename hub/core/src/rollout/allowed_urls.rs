//! The URLs that the hub may request for rules: a rule must not reach what only the hub can reach. Pure.

/// URL prefixes. A URL is allowed if its scheme, host and port are those of a prefix, and its path is at or below the path of
/// the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedUrls(Vec<String>);

impl AllowedUrls {
    /// Allows these prefixes.
    pub fn new(prefixes: impl IntoIterator<Item = String>) -> Self {
        Self(prefixes.into_iter().collect())
    }

    /// Whether a text is a URL that can be a prefix.
    pub fn is_prefix(text: &str) -> bool {
        Url::parse(text).is_some() && !text.contains('?')
    }

    /// Whether a URL is allowed.
    pub fn allows(&self, url: &str) -> bool {
        let Some(url) = Url::parse(url) else {
            return false;
        };
        let prefixes = self.0.iter().filter_map(|prefix| Url::parse(prefix));
        prefixes.into_iter().any(|prefix| url.is_below(&prefix))
    }
}

/// The parts of a URL.
struct Url<'a> {
    scheme: &'a str,
    /// Host and port, as they are written.
    host: &'a str,
    path: &'a str,
}

impl<'a> Url<'a> {
    /// Returns the parts; `None` if a server may read the URL in another way than this.
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, rest) = rest.split_at(end);
        let path = rest.split('?').next().unwrap_or_default();
        let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._:[]-".contains(&byte);
        let is_clear = |path: &str| {
            !["//", "/.", "%", "\\", ";"]
                .iter()
                .any(|part| path.contains(part))
        };
        let is_sound = is_plain
            && !text.contains('#')
            && ["http", "https"].contains(&scheme)
            && !host.is_empty()
            && host.bytes().all(is_host_byte)
            && is_clear(path);
        is_sound.then_some(Self { scheme, host, path })
    }

    fn is_below(&self, prefix: &Self) -> bool {
        let (path, above) = (
            self.path.trim_end_matches('/'),
            prefix.path.trim_end_matches('/'),
        );
        let rest = path.strip_prefix(above);
        self.scheme == prefix.scheme
            && self.host.eq_ignore_ascii_case(prefix.host)
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_at_or_below_a_prefix_are_allowed() {
        let allowed = AllowedUrls::new(
            [
                "http://prom.monitoring:9090",
                "https://checks.example.com/runnel/",
            ]
            .map(ToOwned::to_owned),
        );
        for url in [
            "http://prom.monitoring:9090",
            "http://PROM.monitoring:9090/api/v1/query",
            "http://prom.monitoring:9090?query=up",
            "https://checks.example.com/runnel",
            "https://checks.example.com/runnel/canary?cluster=a%2Fb",
        ] {
            assert!(allowed.allows(url), "{url}");
        }
        for url in [
            "https://prom.monitoring:9090/",
            "http://prom.monitoring:9091/",
            "http://prom.monitoring/",
            "http://prom.monitoring:9090.evil.example/",
            "http://prom.monitoring:9090@evil.example/",
            "http://user@prom.monitoring:9090/",
            "http://evil.example/http://prom.monitoring:9090",
            "https://checks.example.com/",
            "https://checks.example.com/runnel-other",
            "https://checks.example.com/runnel/../admin",
            "https://checks.example.com/runnel/%2e%2e/admin",
            "https://checks.example.com/runnel/..;/admin",
            "https://checks.example.com//runnel/x",
            "https://checks.example.com\\runnel/x",
            "https://checks.example.com/runnel/x#y",
            "http://169.254.169.254/latest",
            "file:///etc/passwd",
            "http://",
            "",
        ] {
            assert!(!allowed.allows(url), "{url}");
        }
        assert!(!AllowedUrls::default().allows("http://prom.monitoring:9090/"));
        // A prefix that could be read in another way allows nothing.
        for prefix in ["http://a@b/", "http://a/../b", "a", "http://a b/"] {
            assert!(!AllowedUrls::is_prefix(prefix), "{prefix}");
            assert!(
                !AllowedUrls::new([prefix.to_owned()]).allows(prefix),
                "{prefix}"
            );
        }
        assert!(AllowedUrls::is_prefix("http://[::1]:9090/prometheus"));
    }
}
