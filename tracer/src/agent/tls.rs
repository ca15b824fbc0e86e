//! TLS of the metrics port and of the export: certificates from files, read again when they change.
//!
//! Owns the files' contents. A changed file that cannot be used is reported, and the old certificate stays.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{config::TlsConfig, log::Log};

/// How often the files' times are compared.
const CHECK: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the certificate {path}: {why}")]
pub struct TlsError {
    path: PathBuf,
    why: String,
}

impl TlsError {
    fn new(path: &Path, why: &impl ToString) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

/// The certificate in use.
#[derive(Debug, Default)]
pub(crate) struct Certificate(Mutex<Option<Loaded>>);

struct Loaded {
    config: TlsConfig,
    /// When the files were written, as of the last reading.
    written: [Option<SystemTime>; 2],
    checked: Instant,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Certificate {
    /// The certificate of this configuration, read again if its files changed.
    ///
    /// # Errors
    ///
    /// If there is no usable certificate at all.
    pub(crate) fn acceptor(&self, config: &TlsConfig, log: &Log) -> Result<TlsAcceptor, TlsError> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(loaded) = loaded.as_mut().filter(|loaded| loaded.config == *config) {
            if now.duration_since(loaded.checked) < CHECK {
                return Ok(loaded.acceptor.clone());
            }
            loaded.checked = now;
            let written = written(config);
            if written != loaded.written {
                loaded.written = written;
                match read(config) {
                    Ok(acceptor) => {
                        loaded.acceptor = acceptor;
                        log.info("tls", &format!("reread {}", config.certificate.display()));
                    }
                    Err(error) => log.error("tls", &format!("{error}; the old one stays")),
                }
            }
            return Ok(loaded.acceptor.clone());
        }
        let acceptor = read(config)?;
        *loaded = Some(Loaded {
            config: config.clone(),
            written: written(config),
            checked: now,
            acceptor: acceptor.clone(),
        });
        Ok(acceptor)
    }
}

fn written(config: &TlsConfig) -> [Option<SystemTime>; 2] {
    // A Secret's files are links that change with each version.
    [&config.certificate, &config.key].map(|path| fs::metadata(path).and_then(|meta| meta.modified()).ok())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&config.certificate)?;
    let failed = |error: &dyn std::fmt::Display| TlsError::new(&config.key, &error.to_string());
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| failed(&error))?;
    let server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| failed(&error))?;
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| TlsError::new(path, &error))?;
    if chain.is_empty() {
        return Err(TlsError::new(path, &"the file has no certificate"));
    }
    Ok(chain)
}

/// A client that trusts the certificates in this file, or the system's.
pub(crate) fn connector(ca: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut roots = RootCertStore::empty();
    let place = ca.unwrap_or(Path::new("the system's"));
    let trusted = match ca {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    if added == 0 {
        return Err(TlsError::new(place, &"there is no usable certificate"));
    }
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new(place, &error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}
