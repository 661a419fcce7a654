// Prints a token that is signed with a private key: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA). Needs nothing but Java 17.
//
// usage: java Sign.java PRIVATE_KEY_PEM KID USER [DEVICE]
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Instant;
import java.util.Base64;

public class Sign {
    /** Algorithms by the kind of the key; a JWT has both numbers of an ES256 signature side by side, and not in ASN.1. */
    static final String[][] ALGORITHMS = {
        {"RSA", "RS256", "SHA256withRSA"},
        {"EC", "ES256", "SHA256withECDSAinP1363Format"},
        {"Ed25519", "EdDSA", "Ed25519"},
    };

    static String encode(byte[] bytes) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }

    static String encode(String text) {
        return encode(text.getBytes(StandardCharsets.UTF_8));
    }

    public static void main(String[] args) throws Exception {
        String pem = Files.readString(Path.of(args[0])).replaceAll("-----[A-Z ]+-----|\\s", "");
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
        PrivateKey key = null;
        String[] algorithm = null;
        for (String[] tried : ALGORITHMS) {
            try {
                key = KeyFactory.getInstance(tried[0]).generatePrivate(encoded);
                algorithm = tried;
                break;
            } catch (InvalidKeySpecException another) {
                // A key of another kind.
            }
        }
        if (key == null) throw new IllegalArgumentException("neither RSA nor P-256 nor Ed25519");
        // Ids have no character that JSON escapes.
        String device = args.length > 3 ? ",\"dev\":\"" + args[3] + "\"" : "";
        long now = Instant.now().getEpochSecond();
        String head = "{\"alg\":\"" + algorithm[1] + "\",\"typ\":\"JWT\",\"kid\":\"" + args[1] + "\"}";
        String claims = "{\"sub\":\"" + args[2] + "\",\"iat\":" + now + ",\"exp\":" + (now + 3600) + device + "}";
        String signed = encode(head) + "." + encode(claims);
        Signature signer = Signature.getInstance(algorithm[2]);
        signer.initSign(key);
        signer.update(signed.getBytes(StandardCharsets.US_ASCII));
        System.out.println(signed + "." + encode(signer.sign()));
    }
}
