// Prints a token for a Tidegate client. Needs nothing but Java 17.
//
// usage: java Mint.java KEY_FILE USER [DEVICE]
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Base64;
import java.util.HexFormat;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Mint {
    static String encode(byte[] bytes) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(bytes);
    }

    static String encode(String text) {
        return encode(text.getBytes(StandardCharsets.UTF_8));
    }

    public static void main(String[] args) throws Exception {
        // The key is the 32 bytes that the 64 hex digits in the file stand for, not the digits.
        byte[] key = HexFormat.of().parseHex(Files.readString(Path.of(args[0])).strip());
        // Ids have no character that JSON escapes.
        String device = args.length > 2 ? ",\"dev\":\"" + args[2] + "\"" : "";
        long now = Instant.now().getEpochSecond();
        String claims = "{\"sub\":\"" + args[1] + "\",\"iat\":" + now + ",\"exp\":" + (now + 3600) + device + "}";
        String signed = encode("{\"alg\":\"HS256\",\"typ\":\"JWT\"}") + "." + encode(claims);
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        System.out.println(signed + "." + encode(mac.doFinal(signed.getBytes(StandardCharsets.US_ASCII))));
    }
}
