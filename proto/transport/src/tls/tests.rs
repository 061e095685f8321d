use std::net::Ipv4Addr;
use std::time::SystemTime;

use futures::StreamExt;
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::server::{Limits, incoming_within};
use super::*;
use crate::identity::{Ca, Fingerprint, MemberKey, ServingPair, SignedCertificate, SpiffeId};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEADLINE: Duration = Duration::from_secs(20);
const HUB: &str = "hubid";

use std::time::Duration;

fn ca() -> Ca {
    Ca::generate(HUB, SystemTime::now()).unwrap()
}

fn member_of(ca: &Ca, at: SystemTime) -> (MemberKey, SignedCertificate) {
    let key = MemberKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let signed = ca
        .sign_member(&request, HUB, "eu-3", "uid-1", at, DAY)
        .unwrap();
    (key, signed)
}

fn session_of(trusted: &Ca, key: &MemberKey, signed: &SignedCertificate) -> ClientConfig {
    let cas = [trusted.certificate().clone()];
    session_config(&cas, HUB, vec![signed.der.clone()], key.to_der()).unwrap()
}

/// The peer that the hub saw and the bytes that it sent, or `None` for a refused connection.
type ServedPeer = Option<(Peer, Vec<u8>)>;

/// Runs one connection of a client to a hub with this serving certificate, over real sockets. The
/// client sends data after its handshake and reads some.
async fn handshake_once(
    ca: &Ca,
    serving: ServingPair,
    client: ClientConfig,
) -> (Result<(), String>, ServedPeer) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = ServerTls::new(&[ca.certificate().clone()], serving).unwrap();
    let hub = async {
        let (tcp, from) = listener.accept().await.unwrap();
        let mut connection = handshake(tcp, from, tls.current()).await.ok()?;
        let mut word = [0; 5];
        connection.read_exact(&mut word).await.ok()?;
        connection.write_all(b"hello").await.ok()?;
        connection.flush().await.ok()?;
        Some((connection.peer().clone(), word.to_vec()))
    };
    let agent = async {
        let mut stream = Connector::new(client)
            .connect(&address.to_string())
            .await
            .map_err(|e| e.to_string())?;
        let mut word = [0; 5];
        stream
            .write_all(b"token")
            .await
            .map_err(|e| e.to_string())?;
        stream.flush().await.map_err(|e| e.to_string())?;
        stream
            .read_exact(&mut word)
            .await
            .map_err(|e| e.to_string())?;
        Ok(())
    };
    timeout(DEADLINE, async { tokio::join!(agent, hub) })
        .await
        .unwrap()
}

fn serving(ca: &Ca) -> ServingPair {
    ca.sign_hub(HUB, SystemTime::now(), DAY).unwrap()
}

#[tokio::test]
async fn a_client_without_certificate_is_anonymous() {
    let ca = ca();
    let client = join_config(ca.pin(), HUB).unwrap();
    let (agent, hub) = handshake_once(&ca, serving(&ca), client).await;
    assert_eq!(agent, Ok(()));
    let (peer, word) = hub.unwrap();
    assert!(peer.certificate.is_none());
    assert_eq!(word, b"token");
}

#[tokio::test]
async fn member_is_identified_by_its_certificate() {
    let ca = ca();
    let (key, signed) = member_of(&ca, SystemTime::now());
    let (agent, hub) = handshake_once(&ca, serving(&ca), session_of(&ca, &key, &signed)).await;
    assert_eq!(agent, Ok(()));
    let certificate = hub.unwrap().0.certificate.unwrap();
    assert_eq!(
        certificate.id,
        SpiffeId::cluster(HUB, "eu-3", "uid-1").unwrap()
    );
    assert_eq!(certificate.key, key.fingerprint());
}

#[tokio::test]
async fn certificates_of_another_ca_are_refused() {
    let (own, foreign) = (ca(), ca());
    for at in [
        SystemTime::now(),
        SystemTime::now() + 3 * DAY,
        SystemTime::now() - 3 * DAY,
    ] {
        let (key, signed) = member_of(&foreign, at);
        let (agent, hub) =
            handshake_once(&own, serving(&own), session_of(&own, &key, &signed)).await;
        assert!(agent.is_err() && hub.is_none());
    }
}

/// Certificates issued while the hub's clock was ahead: the serving one, a member's, and a new CA.
#[tokio::test]
async fn clock_set_back_rejects_no_certificate() {
    let now = SystemTime::now();
    for ahead in [Duration::from_secs(2 * 3600), 2 * DAY, 400 * DAY] {
        let (old, new) = (ca(), Ca::generate(HUB, now + ahead).unwrap());
        for ca in [&old, &new] {
            let (key, signed) = member_of(ca, now + ahead);
            let serving = || ca.sign_hub(HUB, now + ahead, DAY).unwrap();
            let (agent, hub) = handshake_once(ca, serving(), session_of(ca, &key, &signed)).await;
            assert_eq!(agent, Ok(()), "{ahead:?}");
            assert_eq!(
                hub.unwrap().0.certificate.unwrap().not_after,
                signed.not_after
            );
            let joining = join_config(ca.pin(), HUB).unwrap();
            assert_eq!(handshake_once(ca, serving(), joining).await.0, Ok(()));
            // And certificates issued at the right time.
            let (key, signed) = member_of(ca, now);
            let served = ca.sign_hub(HUB, now, DAY).unwrap();
            assert_eq!(
                handshake_once(ca, served, session_of(ca, &key, &signed))
                    .await
                    .0,
                Ok(())
            );
        }
    }
    // The hub's certificate has an end.
    let ca = Ca::generate(HUB, now - 9 * DAY).unwrap();
    let over = ca.sign_hub(HUB, now - 2 * DAY, DAY).unwrap();
    let (key, signed) = member_of(&ca, now);
    assert!(
        handshake_once(&ca, over, session_of(&ca, &key, &signed))
            .await
            .0
            .is_err()
    );
}

#[tokio::test]
async fn expired_hub_certificate_blames_the_clock() {
    let own = ca();
    let (key, signed) = member_of(&own, SystemTime::now());
    for at in [SystemTime::now() - 3 * DAY, SystemTime::now() - 90 * DAY] {
        for client in [
            session_of(&own, &key, &signed),
            join_config(own.pin(), HUB).unwrap(),
        ] {
            let (agent, hub) =
                handshake_once(&own, own.sign_hub(HUB, at, DAY).unwrap(), client).await;
            let text = agent.unwrap_err();
            assert!(
                text.contains("set the clock") && !text.contains(UNTRUSTED),
                "{text}"
            );
            assert!(hub.is_none());
        }
    }
}

#[tokio::test]
async fn expired_member_is_identified_as_expired() {
    let made = SystemTime::now() - 9 * DAY;
    let (own, foreign) = (
        Ca::generate(HUB, made).unwrap(),
        Ca::generate(HUB, made).unwrap(),
    );
    let (key, signed) = member_of(&own, made + DAY);
    let (agent, hub) = handshake_once(&own, serving(&own), session_of(&own, &key, &signed)).await;
    assert_eq!(agent, Ok(()));
    let certificate = hub.unwrap().0.certificate.unwrap();
    assert_eq!(certificate.not_after, signed.not_after);
    assert!(certificate.not_after < SystemTime::now() - 6 * DAY);
    // Age does not make up for another CA.
    let (key, signed) = member_of(&foreign, made + DAY);
    let (agent, hub) = handshake_once(&own, serving(&own), session_of(&own, &key, &signed)).await;
    assert!(agent.is_err() && hub.is_none());
}

#[tokio::test]
async fn a_client_with_another_pin_sends_nothing() {
    let ca = ca();
    let client = join_config(Fingerprint::of_key(b"another"), HUB).unwrap();
    let (agent, hub) = handshake_once(&ca, serving(&ca), client).await;
    assert!(
        agent
            .unwrap_err()
            .contains("not the hub of the join string")
    );
    assert!(hub.is_none());
}

#[tokio::test]
async fn foreign_chain_with_the_pinned_ca_beside_it_is_rejected() {
    let (own, foreign) = (ca(), ca());
    let mut pair = serving(&foreign);
    pair.chain.push(own.certificate().clone());
    let (agent, hub) = handshake_once(&own, pair, join_config(own.pin(), HUB).unwrap()).await;
    assert!(agent.is_err() && hub.is_none());
}

#[tokio::test]
async fn another_hub_of_the_same_ca_is_refused() {
    let ca = ca();
    let pair = ca.sign_hub("other", SystemTime::now(), DAY).unwrap();
    let (agent, hub) = handshake_once(&ca, pair, join_config(ca.pin(), HUB).unwrap()).await;
    assert!(agent.unwrap_err().contains("not the hub of this agent"));
    assert!(hub.is_none());
}

#[tokio::test]
async fn a_member_cannot_pose_as_the_hub() {
    let ca = ca();
    let (key, signed) = member_of(&ca, SystemTime::now());
    let (own_key, own) = member_of(&ca, SystemTime::now());
    let clients = [
        join_config(ca.pin(), HUB).unwrap(),
        session_of(&ca, &own_key, &own),
    ];
    for client in clients {
        let chain = vec![signed.der.clone(), ca.certificate().clone()];
        let pair = ServingPair {
            chain,
            key: key.to_der(),
            not_after: signed.not_after,
        };
        let (agent, hub) = handshake_once(&ca, pair, client).await;
        assert!(agent.is_err() && hub.is_none());
    }
}

#[tokio::test]
async fn a_leaf_without_usages_or_identity_is_no_hub() {
    let ca = ca();
    let key = KeyPair::generate().unwrap();
    let ca_key = KeyPair::from_pem(&ca.key_pem()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(ca.certificate(), ca_key).unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(
        format!("spiffe://{HUB}/hub").try_into().unwrap(),
    )];
    let leaf = params.signed_by(&key, &issuer).unwrap();
    let chain = vec![leaf.der().clone(), ca.certificate().clone()];
    let der: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let pair = ServingPair {
        chain,
        key: der,
        not_after: SystemTime::now(),
    };
    let (agent, hub) = handshake_once(&ca, pair, join_config(ca.pin(), HUB).unwrap()).await;
    assert!(agent.unwrap_err().contains("not the hub of this agent"));
    assert!(hub.is_none());
}

#[tokio::test]
async fn the_hubs_certificate_is_no_members() {
    let ca = ca();
    let own = serving(&ca);
    let cas = [ca.certificate().clone()];
    let client = session_config(&cas, HUB, own.chain, own.key).unwrap();
    let (agent, hub) = handshake_once(&ca, serving(&ca), client).await;
    assert!(agent.is_err() && hub.is_none());
}

#[tokio::test]
async fn idle_and_failed_connections_do_not_delay_others() {
    let ca = ca();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = ServerTls::new(&[ca.certificate().clone()], serving(&ca)).unwrap();
    let tls = Arc::new(tls);
    let mut connections = std::pin::pin!(incoming(listener, tls.clone()));

    let _silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut noise = tokio::net::TcpStream::connect(address).await.unwrap();
    noise.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();

    // A new pair is served to the next handshake.
    let new = serving(&ca);
    let leaf = new.chain[0].clone();
    tls.set(&[ca.certificate().clone()], vec![new]).unwrap();

    let connector = Connector::new(join_config(ca.pin(), HUB).unwrap());
    let address = address.to_string();
    let meeting = async { tokio::join!(connector.connect(&address), connections.next()) };
    let (agent, hub) = timeout(DEADLINE, meeting).await.unwrap();
    let agent = agent.unwrap();
    assert_eq!(agent.get_ref().1.peer_certificates().unwrap()[0], leaf);
    assert!(hub.unwrap().unwrap().peer().certificate.is_none());
}

#[tokio::test]
async fn an_absent_hub_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let connector = Connector::new(join_config(Fingerprint::of_key(b"x"), HUB).unwrap());
    let error = connector.connect(&address).await.unwrap_err();
    assert!(matches!(error, ConnectError::Connect { .. }) && error.to_string().contains(&address));
    assert!(matches!(endpoint("no port"), Err(ConnectError::Address(_))));
    assert!(endpoint(&address).is_ok());
}

/// Starts a hub with these limits that echoes data.
async fn hub_within(ca: &Ca, limits: Limits) -> (std::net::SocketAddr, impl Future<Output = ()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Arc::new(ServerTls::new(&[ca.certificate().clone()], serving(ca)).unwrap());
    let serve =
        incoming_within(listener, tls, limits).for_each_concurrent(None, |connection| async move {
            let (mut reader, mut writer) = tokio::io::split(connection.unwrap());
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        });
    (address, serve)
}

async fn open(
    client: &ClientConfig,
    address: std::net::SocketAddr,
) -> impl AsyncReadExt + AsyncWriteExt + Unpin {
    Connector::new(client.clone())
        .connect(&address.to_string())
        .await
        .unwrap()
}

/// Whether the data is echoed.
async fn echoes(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> bool {
    let mut word = [0; 4];
    let asked = stream.write_all(b"word").await.is_ok() && stream.flush().await.is_ok();
    asked && stream.read_exact(&mut word).await.is_ok()
}

const ROOMY: Limits = Limits {
    handshakes: 100,
    turn: Duration::from_millis(100),
    anonymous: 100,
    anonymous_timeout: DAY,
};

#[tokio::test]
async fn silent_peers_block_no_others() {
    let ca = ca();
    let (key, signed) = member_of(&ca, SystemTime::now());
    let client = session_of(&ca, &key, &signed);
    let (address, hub) = hub_within(
        &ca,
        Limits {
            handshakes: 4,
            ..ROOMY
        },
    )
    .await;
    let test = async {
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let came = timeout(Duration::from_secs(5), async {
            echoes(&mut open(&client, address).await).await
        });
        assert!(came.await.expect("a member that is let in"));
        // The oldest one was dropped.
        let mut oldest = silent.remove(0);
        assert_eq!(
            timeout(DEADLINE, oldest.read(&mut [0; 8]))
                .await
                .unwrap()
                .unwrap_or_default(),
            0
        );
    };
    tokio::select! { () = hub => {}, () = test => {} }
}

#[tokio::test]
async fn member_from_elsewhere_waits_for_no_crowd() {
    let ca = ca();
    let (key, signed) = member_of(&ca, SystemTime::now());
    let client = session_of(&ca, &key, &signed);
    // Many connections of one address occupy all places, for longer than any time limit.
    let (address, hub) = hub_within(
        &ca,
        Limits {
            handshakes: 4,
            turn: DAY,
            ..ROOMY
        },
    )
    .await;
    let test = async {
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        // A connection of that address waits with its crowd.
        let near = Connector::new(client.clone());
        let text = address.to_string();
        assert!(
            timeout(Duration::from_millis(300), near.connect(&text))
                .await
                .is_err()
        );
        let elsewhere = tokio::net::TcpSocket::new_v4().unwrap();
        elsewhere
            .bind((Ipv4Addr::new(127, 9, 9, 9), 0).into())
            .unwrap();
        let tcp = timeout(DEADLINE, elsewhere.connect(address))
            .await
            .unwrap()
            .unwrap();
        let tls = tokio_rustls::TlsConnector::from(std::sync::Arc::new(client.clone()));
        let name = rustls::pki_types::ServerName::try_from("hub").unwrap();
        let mut stream = timeout(DEADLINE, tls.connect(name, tcp))
            .await
            .expect("a place")
            .unwrap();
        assert!(echoes(&mut stream).await);
    };
    tokio::select! { () = hub => {}, () = test => {} }
}

#[tokio::test]
async fn peer_without_certificate_is_cut_soon_and_members_stay() {
    let ca = ca();
    let (key, signed) = member_of(&ca, SystemTime::now());
    let (member, joining) = (
        session_of(&ca, &key, &signed),
        join_config(ca.pin(), HUB).unwrap(),
    );
    let life = Duration::from_millis(500);
    let (address, hub) = hub_within(
        &ca,
        Limits {
            anonymous_timeout: life,
            ..ROOMY
        },
    )
    .await;
    let test = async {
        let (mut member, mut anonymous) =
            (open(&member, address).await, open(&joining, address).await);
        assert!(echoes(&mut anonymous).await);
        let end = timeout(DEADLINE, anonymous.read(&mut [0; 8]))
            .await
            .expect("the end of the connection");
        assert_eq!(end.unwrap_or_default(), 0);
        assert!(echoes(&mut member).await);
    };
    tokio::select! { () = hub => {}, () = test => {} }
}

#[tokio::test]
async fn too_many_without_a_certificate_end_the_oldest() {
    let ca = ca();
    let joining = join_config(ca.pin(), HUB).unwrap();
    let (address, hub) = hub_within(
        &ca,
        Limits {
            anonymous: 2,
            ..ROOMY
        },
    )
    .await;
    let test = async {
        let (mut first, mut second) =
            (open(&joining, address).await, open(&joining, address).await);
        assert!(echoes(&mut first).await && echoes(&mut second).await);
        let mut third = open(&joining, address).await;
        assert!(echoes(&mut third).await);
        assert!(
            !timeout(DEADLINE, echoes(&mut first))
                .await
                .expect("the end of the oldest")
        );
        assert!(echoes(&mut second).await && echoes(&mut third).await);
    };
    tokio::select! { () = hub => {}, () = test => {} }
}
