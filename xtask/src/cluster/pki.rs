//! The cluster's certificates and kubeconfigs: one authority, made for each run, and a client certificate for each
//! component, whose subject is its user and group in Kubernetes.

use anyhow::{Context as _, Result};
use data_encoding::BASE64;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The authority that signs every certificate of a cluster.
#[derive(Debug)]
pub(crate) struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let make = || {
            let key = KeyPair::generate()?;
            let mut parameters = parameters("viptrace-lab", None, &[])?;
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let certificate = parameters.self_signed(&key)?.pem();
            Ok::<_, rcgen::Error>(Self { certificate, issuer: Issuer::new(parameters, key) })
        };
        make().context("could not make the cluster's certificate authority")
    }

    /// The authority's own certificate.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for this user, who is in `group`, valid for these names and addresses of a server.
    pub(crate) fn issue(&self, user: &str, group: Option<&str>, servers: &[&str]) -> Result<Identity> {
        let make = || {
            let key = KeyPair::generate()?;
            let certificate = parameters(user, group, servers)?.signed_by(&key, &self.issuer)?.pem();
            Ok::<_, rcgen::Error>(Identity { certificate, key: key.serialize_pem() })
        };
        make().with_context(|| format!("could not make the certificate of {user}"))
    }

    /// The kubeconfig with which this user connects to the API server at `address`.
    pub(crate) fn kubeconfig(&self, user: &Identity, address: &str) -> String {
        let data = |text: &str| BASE64.encode(text.as_bytes());
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "clusters": [{"name": "lab", "cluster": {
                "server": format!("https://{address}:6443"),
                "certificate-authority-data": data(&self.certificate),
            }}],
            "users": [{"name": "lab", "user": {
                "client-certificate-data": data(&user.certificate),
                "client-key-data": data(&user.key),
            }}],
        });
        format!("{kubeconfig:#}\n")
    }
}

/// The subject is a user (its common name) and a group (its organisation).
fn parameters(user: &str, group: Option<&str>, servers: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = servers.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        parameters.distinguished_name.push(DnType::OrganizationName, group);
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_holds_what_a_client_needs() {
        let authority = Authority::new().unwrap();
        let admin = authority.issue("admin", Some("system:masters"), &[]).unwrap();
        let read: serde_json::Value =
            serde_json::from_str(&authority.kubeconfig(&admin, "127.0.0.1")).unwrap();
        assert_eq!(read["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        let key = read["users"][0]["user"]["client-key-data"].as_str().unwrap();
        let key = String::from_utf8(BASE64.decode(key.as_bytes()).unwrap()).unwrap();
        assert!(key == admin.key && key.starts_with("-----BEGIN PRIVATE KEY-----"), "{key}");
    }

    #[test]
    fn two_authorities_differ() {
        let certificate = || Authority::new().unwrap().certificate().to_owned();
        assert_ne!(certificate(), certificate());
    }
}
