//! Frames of the socket: a kind, a length, and a body of at most 1 MiB.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest body, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Hello = 1,
    Record = 2,
    Bytes = 3,
    Lost = 4,
    Error = 5,
    End = 6,
    Heartbeat = 7,
}

impl FrameKind {
    const ALL: [Self; 7] =
        [Self::Hello, Self::Record, Self::Bytes, Self::Lost, Self::Error, Self::End, Self::Heartbeat];
}

/// The bytes of a frame. A longer body is cut.
pub(super) fn encode(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let body = body.get(..MAX_BODY_BYTES).unwrap_or(body);
    let mut bytes = Vec::with_capacity(5 + body.len());
    bytes.push(kind as u8);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Reads one frame; `None` at the end of the stream.
///
/// # Errors
///
/// If the stream ends within a frame, or a kind or a length is not one of this protocol.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind).await? == 0 {
        return Ok(None);
    }
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it is not a frame of viptrace's protocol");
    let kind = FrameKind::ALL.into_iter().find(|known| *known as u8 == kind[0]).ok_or_else(wrong)?;
    let length = from.read_u32_le().await? as usize;
    if length > MAX_BODY_BYTES {
        return Err(wrong());
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(Some((kind, body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> io::Result<Vec<(FrameKind, Vec<u8>)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut rest = bytes;
            let mut found = Vec::new();
            while let Some(frame) = read(&mut rest).await? {
                found.push(frame);
            }
            Ok(found)
        })
    }

    #[test]
    fn frames_read_back() {
        let frames =
            [(FrameKind::Hello, b"{}".to_vec()), (FrameKind::Bytes, vec![7; 300]), (FrameKind::End, vec![])];
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| encode(*kind, body)).collect();
        assert_eq!(all(&bytes).unwrap(), frames);
        assert_eq!(all(&bytes[..9]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(all(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        assert!(all(&[2, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert_eq!(encode(FrameKind::Record, &vec![b'x'; (1 << 20) + 9]).len(), 5 + (1 << 20));
    }
}
