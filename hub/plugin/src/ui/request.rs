//! Which requests are answered. Pure: the page is for one browser of one user, and reads only a closed list.
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use ring::digest::{SHA256, digest};
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use runnel_proto::model::is_subdomain;

use super::assets::{Asset, asset};

/// The number of copies on one page.
const COPIES: usize = 200;
/// The longest `continue` token in bytes.
const TOKEN: usize = 4096;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A file of the page.
    Asset(&'static Asset),
    /// The state, and its changes.
    Stream,
    /// An object or a list of the API server, by its path.
    Api(String),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The name in the request is not that of this server, as in DNS rebinding.
    Host,
    /// Another page sent it.
    Origin,
    /// It would change something.
    Method,
    /// The address has no token, or another one.
    Token,
    /// There is nothing at this address.
    Unknown,
    /// A parameter is missing or wrong.
    Parameter(&'static str),
}

impl Refusal {
    /// The status code.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin | Self::Token => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Parameter(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// A sentence.
    pub(super) fn text(self) -> String {
        match self {
            Self::Host => "this server answers only as 127.0.0.1 or localhost".to_owned(),
            Self::Origin => "another page sent this request".to_owned(),
            Self::Method => "the page is read-only: use GET".to_owned(),
            Self::Token => {
                "the address has no valid token: open the one that `kubectl runnel ui` prints"
                    .to_owned()
            }
            Self::Unknown => "there is nothing at this address".to_owned(),
            Self::Parameter(name) => format!("the parameter {name} is missing or wrong"),
        }
    }
}

/// Decides which requests are answered.
pub(super) struct Gate {
    /// The digest of the token. Comparing digests takes a time that tells nothing about the token.
    token: [u8; 32],
    port: u16,
}

impl Gate {
    /// Creates a gate for a token and the port of the server.
    pub(super) fn new(token: &str, port: u16) -> Self {
        Self {
            token: sha256(token),
            port,
        }
    }

    /// Returns what a request asks for.
    pub(super) fn route(&self, request: &Parts) -> Result<Route, Refusal> {
        let host = self.host(&request.headers).ok_or(Refusal::Host)?;
        if request.method != Method::GET && request.method != Method::HEAD {
            return Err(Refusal::Method);
        }
        if is_foreign(&request.headers, host) {
            return Err(Refusal::Origin);
        }
        let path = request.uri.path().strip_prefix('/').unwrap_or_default();
        let (token, rest) = path.split_once('/').unwrap_or((path, "-"));
        if sha256(token) != self.token {
            return Err(Refusal::Token);
        }
        let query = request.uri.query().unwrap_or_default();
        match rest {
            "stream" => Ok(Route::Stream),
            "delivery" => delivery(query).map(Route::Api),
            "copies" => copies(query).map(Route::Api),
            name => asset(name).map(Route::Asset).ok_or(Refusal::Unknown),
        }
    }

    /// The name of this server in a request, if it is one of its own.
    fn host<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let mut all = headers.get_all(header::HOST).iter();
        let host = all.next()?.to_str().ok()?;
        let (name, port) = host.split_once(':').unwrap_or((host, "80"));
        let is_own = matches!(name, "127.0.0.1" | "localhost") && port.parse() == Ok(self.port);
        (is_own && all.next().is_none()).then_some(host)
    }
}

/// Whether another page sent a request. Browsers add these headers, and pages cannot change them.
fn is_foreign(headers: &HeaderMap, host: &str) -> bool {
    let other_origin = headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin.as_bytes() != format!("http://{host}").as_bytes());
    let other_site = headers
        .get("sec-fetch-site")
        .is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"));
    other_origin || other_site
}

fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

/// A rule in one cluster, with valid names.
struct Pair {
    namespace: Option<String>,
    rule: String,
    cluster: String,
}

impl Pair {
    fn of(query: &str) -> Result<Self, Refusal> {
        let rule = parameter(query, "rule").ok_or(Refusal::Parameter("rule"))?;
        let cluster = parameter(query, "cluster").filter(|cluster| is_subdomain(cluster));
        let cluster = cluster.ok_or(Refusal::Parameter("cluster"))?;
        let (namespace, rule) = match rule.split_once('/') {
            Some((namespace, rule)) => (Some(namespace.to_owned()), rule.to_owned()),
            None => (None, rule),
        };
        let valid = is_subdomain(&rule) && namespace.as_deref().is_none_or(is_subdomain);
        valid
            .then_some(Self {
                namespace,
                rule,
                cluster,
            })
            .ok_or(Refusal::Parameter("rule"))
    }

    /// The path of a resource, with the name that it has for cluster rules.
    fn path(&self, plural: &str, of_cluster_rules: &str) -> String {
        let view = format!("/apis/{VIEW_GROUP}/{VIEW_VERSION}");
        match &self.namespace {
            Some(namespace) => format!("{view}/namespaces/{namespace}/{plural}"),
            None => format!("{view}/{of_cluster_rules}"),
        }
    }
}

fn delivery(query: &str) -> Result<String, Refusal> {
    let pair = Pair::of(query)?;
    let path = pair.path("deliveries", "clusterdeliveries");
    Ok(format!("{path}/{}:{}", pair.rule, pair.cluster))
}

fn copies(query: &str) -> Result<String, Refusal> {
    let pair = Pair::of(query)?;
    let token = parameter(query, "continue").unwrap_or_default();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if token.len() > TOKEN || !token.bytes().all(is_token) {
        return Err(Refusal::Parameter("continue"));
    }
    let path = pair.path("copies", "clustercopies");
    let (rule, cluster) = (pair.rule, pair.cluster);
    Ok(format!(
        "{path}?fieldSelector=rule%3D{rule}%2Ccluster%3D{cluster}&limit={COPIES}&continue={token}"
    ))
}

fn parameter(query: &str, name: &str) -> Option<String> {
    form_urlencoded::parse(query.as_bytes())
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    const VALID: &str = "aGVsbG8";

    fn route(method: Method, path: &str, headers: &[(&str, &str)]) -> Result<Route, Refusal> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Gate::new(VALID, 4321).route(&parts)
    }

    fn get(path: &str) -> Result<Route, Refusal> {
        route(Method::GET, path, &[("host", "127.0.0.1:4321")])
    }

    fn api(path: &str) -> Result<String, Refusal> {
        match get(&format!("/{VALID}/{path}"))? {
            Route::Api(path) => Ok(path),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn only_the_own_names_are_hosts() {
        let path = format!("/{VALID}/");
        for host in ["127.0.0.1:4321", "localhost:4321"] {
            let routed = route(Method::GET, &path, &[("host", host)]);
            assert!(matches!(routed, Ok(Route::Asset(_))), "{host}");
        }
        for host in [
            "127.0.0.1",
            "127.0.0.1:4322",
            "localhost.evil.example:4321",
            "evil.example:4321",
            "[::1]:4321",
            "",
        ] {
            let routed = route(Method::GET, &path, &[("host", host)]);
            assert_eq!(routed, Err(Refusal::Host), "{host}");
        }
        assert_eq!(route(Method::GET, &path, &[]), Err(Refusal::Host));
        let two = [("host", "127.0.0.1:4321"), ("host", "evil.example")];
        assert_eq!(route(Method::GET, &path, &two), Err(Refusal::Host));
    }

    #[test]
    fn requests_that_write_are_refused() {
        let host = [("host", "127.0.0.1:4321")];
        for method in [
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
        ] {
            let routed = route(method.clone(), &format!("/{VALID}/"), &host);
            assert_eq!(routed, Err(Refusal::Method), "{method}");
        }
        assert!(route(Method::HEAD, &format!("/{VALID}/"), &host).is_ok());
    }

    #[test]
    fn requests_of_other_pages_are_refused() {
        let path = format!("/{VALID}/stream");
        let with = |name, value| {
            route(
                Method::GET,
                &path,
                &[("host", "localhost:4321"), (name, value)],
            )
        };
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://127.0.0.1:4321"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(with(name, value), Err(Refusal::Origin), "{name}: {value}");
        }
        for (name, value) in [
            ("origin", "http://localhost:4321"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(with(name, value), Ok(Route::Stream), "{name}: {value}");
        }
    }

    #[test]
    fn only_the_whole_token_opens_the_page() {
        for path in ["/", "/app.js", "/aGVsbG/", "/aGVsbG8x/", "//", "/AGVSBG8/"] {
            assert_eq!(get(path), Err(Refusal::Token), "{path}");
        }
        assert_eq!(get(&format!("/{VALID}")), Err(Refusal::Unknown));
        assert_eq!(get(&format!("/{VALID}/../stream")), Err(Refusal::Unknown));
        assert!(matches!(
            get(&format!("/{VALID}/app.js")),
            Ok(Route::Asset(_))
        ));
    }

    #[test]
    fn paths_of_the_api_are_a_closed_list() {
        let view = "/apis/view.runnel.dev/v1alpha1";
        assert_eq!(
            api("delivery?rule=shop/settings&cluster=eu-1"),
            Ok(format!("{view}/namespaces/shop/deliveries/settings:eu-1"))
        );
        assert_eq!(
            api("delivery?rule=banner&cluster=eu-1"),
            Ok(format!("{view}/clusterdeliveries/banner:eu-1"))
        );
        assert_eq!(
            api("copies?rule=shop/settings&cluster=eu-1&continue=a-b_9"),
            Ok(format!(
                "{view}/namespaces/shop/copies?fieldSelector=rule%3Dsettings%2Ccluster%3Deu-1&limit=200&continue=a-b_9"
            ))
        );
        for (path, parameter) in [
            ("delivery?cluster=eu-1", "rule"),
            ("delivery?rule=a/b", "cluster"),
            ("delivery?rule=a/b/c&cluster=eu-1", "rule"),
            ("delivery?rule=../secrets&cluster=eu-1", "rule"),
            ("delivery?rule=a%2F..%2Fb&cluster=eu-1", "rule"),
            ("delivery?rule=a/b&cluster=eu-1%2F..", "cluster"),
            ("copies?rule=a/b&cluster=c%2Crule%3Dd", "cluster"),
            (
                "copies?rule=a/b&cluster=c&continue=%26watch%3D1",
                "continue",
            ),
        ] {
            assert_eq!(api(path), Err(Refusal::Parameter(parameter)), "{path}");
        }
        let long = format!(
            "copies?rule=a/b&cluster=c&continue={}",
            "a".repeat(TOKEN + 1)
        );
        assert_eq!(api(&long), Err(Refusal::Parameter("continue")));
        let longest = format!("copies?rule=a/b&cluster=c&continue={}", "a".repeat(TOKEN));
        assert!(api(&longest).is_ok());
        for other in ["api/v1/secrets", "secrets", "proxy", "stream/"] {
            assert_eq!(
                get(&format!("/{VALID}/{other}")),
                Err(Refusal::Unknown),
                "{other}"
            );
        }
    }
}
