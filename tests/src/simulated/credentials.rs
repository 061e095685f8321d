//! The credentials of a joined member.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use runnel_proto::wire::{CertificateResponse, JoinRequest, RenewRequest};
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{Ca, JoinString, MemberKey, SKEW};
use runnel_transport::tls::{Connector, Route, endpoint, join_config, session_config};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tonic::Status;
use tonic::transport::Channel;

/// A member's name, key and certificate, and the hub that it trusts.
#[derive(Clone)]
pub struct Credentials {
    /// The hub's address.
    pub address: String,
    /// The hub's id.
    pub hub: String,
    /// The name of the `MemberCluster`.
    pub cluster: String,
    key: Arc<MemberKey>,
    certificate: CertificateDer<'static>,
    ca_certificates: Vec<CertificateDer<'static>>,
}

impl Credentials {
    /// Joins with a new key.
    ///
    /// # Errors
    /// What the hub answered, or why it could not be asked.
    pub async fn join(join: &JoinString) -> Result<Self, Status> {
        let key = MemberKey::generate().map_err(|error| Status::internal(error.to_string()))?;
        Self::join_with(join, Arc::new(key)).await
    }

    /// Joins with this key.
    ///
    /// # Errors
    /// What the hub answered, or why it could not be asked.
    pub async fn join_with(join: &JoinString, key: Arc<MemberKey>) -> Result<Self, Status> {
        let internal = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
        let address = join.addresses.first().cloned().unwrap_or_default();
        let config = join_config(join.pin, &join.hub).map_err(|error| internal(&error))?;
        let channel = channel(&address, config)
            .await
            .map_err(|error| internal(&format!("{error:#}")))?;
        let request = JoinRequest {
            cluster: join.cluster.clone(),
            token: join.token.expose().to_owned(),
            certificate_request: key
                .certificate_request()
                .map_err(|error| internal(&error))?
                .into(),
            cluster_uid: String::new(),
        };
        let response = RunnelClient::new(channel).join(request).await?.into_inner();
        Ok(Self::received(
            &address,
            &join.hub,
            &join.cluster,
            key,
            &response,
        ))
    }

    /// Issues a certificate for a member of a hub without tokens.
    ///
    /// # Errors
    /// If the names are invalid.
    pub fn issued(ca: &Ca, address: &str, hub: &str, cluster: &str) -> Result<Self> {
        let key = Arc::new(MemberKey::generate()?);
        let (request, life) = (key.certificate_request()?, Duration::from_secs(24 * 3600));
        let signed = ca.sign_member(&request, hub, cluster, cluster, SystemTime::now(), life)?;
        Ok(Self {
            address: address.to_owned(),
            hub: hub.to_owned(),
            cluster: cluster.to_owned(),
            key,
            certificate: signed.der,
            ca_certificates: vec![ca.certificate().clone()],
        })
    }

    /// The same member with a new certificate for this key, as the hub gives it.
    ///
    /// # Errors
    /// What the hub answered, or why it could not be asked.
    pub async fn renew(
        &self,
        key: Arc<MemberKey>,
        certificate_request: Vec<u8>,
    ) -> Result<Self, Status> {
        let mut client = RunnelClient::new(
            self.channel()
                .await
                .map_err(|error| Status::internal(error.to_string()))?,
        );
        let request = RenewRequest {
            certificate_request: certificate_request.into(),
        };
        let response = client.renew(request).await?.into_inner();
        Ok(Self::received(
            &self.address,
            &self.hub,
            &self.cluster,
            key,
            &response,
        ))
    }

    /// The credentials of an attacker who holds `ca`, which need not be the hub's, and
    /// creates a certificate.
    ///
    /// # Errors
    /// When the names are invalid.
    pub fn forge(&self, ca: &Ca, forgery: Forgery<'_>) -> Result<Self> {
        let Forgery {
            hub,
            cluster,
            uid,
            made,
            life,
            ..
        } = forgery;
        let key = match forgery.key {
            Some(key) => key,
            None => Arc::new(MemberKey::generate()?),
        };
        let mut params = CertificateParams::default();
        let id = format!("spiffe://{hub}/cluster/{cluster}/{uid}");
        params.subject_alt_names = vec![SanType::URI(id.try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (made - SKEW).into();
        params.not_after = (made + life).into();
        let issuer_key = KeyPair::from_pem(&ca.key_pem())?;
        let issuer = Issuer::from_ca_cert_der(ca.certificate(), issuer_key)?;
        let signed = params.signed_by(&KeyPair::from_pem(&key.to_pem())?, &issuer)?;
        Ok(Self {
            key,
            certificate: signed.der().clone(),
            cluster: cluster.to_owned(),
            ..self.clone()
        })
    }

    /// The member's key.
    #[must_use]
    pub fn key(&self) -> Arc<MemberKey> {
        self.key.clone()
    }

    /// The member's certificate, DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// TLS settings with the member's certificate.
    ///
    /// # Errors
    /// When key and certificate do not fit.
    pub fn config(&self) -> Result<ClientConfig> {
        let chain = vec![self.certificate.clone()];
        Ok(session_config(
            &self.ca_certificates,
            &self.hub,
            chain,
            self.key.to_der(),
        )?)
    }

    /// A connection to the hub with the member's certificate. With TLS 1.3 a refused certificate shows only at the
    /// first call.
    ///
    /// # Errors
    /// When there is no hub, or it is another one.
    pub async fn channel(&self) -> Result<Channel> {
        channel(&self.address, self.config()?).await
    }

    fn received(
        address: &str,
        hub: &str,
        cluster: &str,
        key: Arc<MemberKey>,
        response: &CertificateResponse,
    ) -> Self {
        let der = |bytes: &bytes::Bytes| CertificateDer::from(bytes.to_vec());
        Self {
            address: address.to_owned(),
            hub: hub.to_owned(),
            cluster: cluster.to_owned(),
            key,
            certificate: der(&response.certificate),
            ca_certificates: response.ca_certificates.iter().map(der).collect(),
        }
    }
}

/// The content of a forged certificate.
pub struct Forgery<'a> {
    /// The hub's id.
    pub hub: &'a str,
    /// The name of the cluster.
    pub cluster: &'a str,
    /// The uid of its `MemberCluster`.
    pub uid: &'a str,
    /// The key; a new one otherwise.
    pub key: Option<Arc<MemberKey>>,
    /// The start of the validity.
    pub made: SystemTime,
    /// The validity.
    pub life: Duration,
}

/// A connection to `address`, shared by the calls over it.
///
/// # Errors
/// When no server answers, or the wrong one does; with the whole chain of causes.
pub async fn channel(address: &str, config: ClientConfig) -> Result<Channel> {
    let connected = endpoint(address)?
        .connect_with_connector(Connector::new(config).by(Route::direct()))
        .await;
    connected.with_context(|| format!("no connection to {address}"))
}
