use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::identity::Ca;

const HUB: &str = "hubid";
const DEADLINE: Duration = Duration::from_secs(20);
const PASSWORD: &str = "s3cret";

/// A CONNECT proxy that requires `me:s3cret` and counts the tunnels.
struct Tunnels {
    address: String,
    opened: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Tunnels {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let opened = Arc::new(AtomicUsize::new(0));
        let count = opened.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                tunnels.spawn(tunnel(stream, count.clone()));
            }
        });
        Self {
            address,
            opened,
            _tasks: tasks,
        }
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn route(&self, user: &str, no_proxy: &str) -> Route {
        Route::new(&format!("http://{user}@{}", self.address), no_proxy).unwrap()
    }
}

async fn tunnel(mut stream: TcpStream, opened: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next())
        .unwrap()
        .to_owned();
    let expected = format!(
        "Proxy-Authorization: Basic {}\r\n",
        BASE64.encode(format!("me:{PASSWORD}").as_bytes())
    );
    if !head.contains(&expected) {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(refusal).await;
        return;
    }
    let Ok(mut hub) = TcpStream::connect(&target).await else {
        let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
        return;
    };
    opened.fetch_add(1, Ordering::SeqCst);
    stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .unwrap();
    let _ = copy_bidirectional(&mut stream, &mut hub).await;
}

/// Opens one connection to a hub by this route. Returns the error as text.
async fn connect(route: Route) -> Result<(), String> {
    let ca = Ca::generate(HUB, SystemTime::now()).unwrap();
    let pair = ca
        .sign_hub(HUB, SystemTime::now(), Duration::from_secs(3600))
        .unwrap();
    let tls = ServerTls::new(&[ca.certificate().clone()], pair).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let hub = async {
        let (tcp, from) = listener.accept().await.unwrap();
        let mut connection = handshake(tcp, from, tls.current())
            .await
            .map_err(|error| error.to_string())?;
        connection
            .write_all(b"hello")
            .await
            .map_err(|error| error.to_string())?;
        connection.flush().await.map_err(|error| error.to_string())
    };
    let agent = async {
        let config = join_config(ca.pin(), HUB).unwrap();
        let stream = Connector::new(config)
            .by(route)
            .connect(&address.to_string())
            .await;
        let mut word = [0; 5];
        stream
            .map_err(|error| error.to_string())?
            .read_exact(&mut word)
            .await
            .map_err(|error| error.to_string())?;
        assert_eq!(&word, b"hello");
        Ok(())
    };
    let both = async {
        tokio::select! {
            Err(error) = agent => Err(error),
            Err(error) = hub => Err(error),
            else => Ok(()),
        }
    };
    timeout(DEADLINE, both).await.unwrap()
}

#[tokio::test]
async fn tls_uses_or_skips_the_proxy_by_the_environment() {
    let proxy = Tunnels::start().await;
    connect(proxy.route("me:s3cret", "")).await.unwrap();
    assert_eq!(proxy.opened(), 1);
    connect(proxy.route("me:s3cret", "10.0.0.0/8,127.0.0.0/8"))
        .await
        .unwrap();
    connect(Route::direct()).await.unwrap();
    assert_eq!(proxy.opened(), 1);
}

#[tokio::test]
async fn refusing_proxy_is_named_without_its_password() {
    let proxy = Tunnels::start().await;
    let error = connect(proxy.route("me:wr0ng", "")).await.unwrap_err();
    assert!(
        error.contains(&proxy.address) && error.contains("407") && error.contains("HTTPS_PROXY"),
        "{error}"
    );
    assert!(
        !error.contains("wr0ng") && !error.contains("me:"),
        "{error}"
    );
    assert_eq!(proxy.opened(), 0);
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_named() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let error = connect(Route::new(&closed.to_string(), "").unwrap())
        .await
        .unwrap_err();
    assert!(
        error.contains(&format!("through the proxy {closed}"))
            && error.contains("cannot be reached"),
        "{error}"
    );
}
